"""Carry a tokenizer and its chat template over into a GGUF file."""

from __future__ import annotations

import json
import re
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError

WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
# llama.cpp's names of the rules that divide a text into words, by what tokenizer.json has of them.
RULES = {
    "": "gpt-2",  # those of ByteLevel itself
    "digits": "smollm",
    CONTRACTIONS + WORDS % "{1,3}": "llama-bpe",
    CONTRACTIONS + WORDS % "": "qwen2",
    f"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
}
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def add_tokenizer(writer: Any, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Add vocabulary, merges, special tokens and chat template to a GGUFWriter.

    Raises InputError for a tokenizer whose rules llama.cpp does not have.
    """
    from gguf import TokenType

    rules = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else {}
    model = rules.get("model", {"type": "slow"})
    if model["type"] != "BPE" or not model["merges"]:
        kind = f"a {model['type']} tokenizer{'' if model['type'] != 'BPE' else ' without merges'}"
        raise InputError(
            f"a GGUF file cannot hold {kind}: serve it with grasp-deploy serve instead"
        )
    of_bytes = not model["byte_fallback"]  # else of SentencePiece
    texts = {place: text for text, place in model["vocab"].items()}
    added = {each["id"]: each for each in rules["added_tokens"]}
    kinds = dict.fromkeys(texts, TokenType.NORMAL)
    if not of_bytes:
        kinds |= {place: TokenType.BYTE for place, text in texts.items() if BYTE.fullmatch(text)}
    for place, each in added.items():
        texts[place] = each["content"]
        kinds[place] = TokenType.CONTROL if each["special"] else TokenType.USER_DEFINED
    every = range(vocab_size)
    writer.add_token_list([texts.get(place, f"[PAD{place}]") for place in every])
    writer.add_token_types([kinds.get(place, TokenType.UNUSED) for place in every])
    merges = [each if isinstance(each, list) else each.split(" ") for each in model["merges"]]
    if of_bytes:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_rule(rules["pre_tokenizer"]))
        writer.add_token_merges([" ".join(pair) for pair in merges])
    else:
        writer.add_tokenizer_model("llama")
        ranks: dict[str, int] = {}
        for rank, pair in enumerate(merges):
            ranks.setdefault("".join(pair), rank)
        last = len(merges)
        writer.add_token_scores([-float(ranks.get(texts.get(p, ""), last)) for p in every])
    _add_specials(writer, tokenizer, texts, of_bytes)


def _rule(pre: Any) -> str:
    """llama.cpp's name of a pre-tokenizer; InputError for one that it does not have."""
    steps = pre["pretokenizers"] if pre and pre["type"] == "Sequence" else [pre or {}]
    if len(steps) == 1:
        found = ""
    elif len(steps) == 2 and steps[0]["type"] == "Digits" and steps[0]["individual_digits"]:
        found = "digits"
    else:
        found = steps[0].get("pattern", {}).get("Regex", "?") if len(steps) == 2 else "?"
    last = [steps[-1].get(key) for key in ("type", "use_regex", "add_prefix_space")]
    if found not in RULES or last != ["ByteLevel", found in ("", "digits"), False]:
        raise InputError(
            "the tokenizer divides words by rules that are none of those known here "
            f"({', '.join(RULES.values())}): serve the model with grasp-deploy serve instead"
        )
    return RULES[found]


def _add_specials(writer: Any, tokenizer: Tokenizer, texts: dict[int, str], of_bytes: bool) -> None:
    for kind in ("bos", "eos", "unk", "pad"):
        place = getattr(tokenizer, f"{kind}_token_id")
        if place is not None:
            getattr(writer, f"add_{kind}_token_id")(place)
    plain, whole = (tokens(tokenizer, "a", add_special_tokens=add) for add in (False, True))
    writer.add_add_bos_token(whole[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(whole[-1:] == [tokenizer.eos_token_id])
    if not of_bytes:
        writer.add_add_space_prefix(any(texts[p].startswith("\u2581") for p in plain[:1]))
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = [{"name": name, "template": text} for name, text in template.items()]
    if template:
        writer.add_chat_template(template)
