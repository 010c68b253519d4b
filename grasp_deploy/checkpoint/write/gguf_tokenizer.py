"""Carry a tokenizer and its chat template over into a GGUF file."""

import json
import re
from typing import Any

from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase as Tokenizer

from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError

WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
# llama.cpp's names of the rules that divide text into words, by the expression in tokenizer.json.
RULES = {
    "": "gpt-2",  # those of ByteLevel itself
    "digits": "smollm",
    CONTRACTIONS + WORDS % "{1,3}": "llama-bpe",
    CONTRACTIONS + WORDS % "": "qwen2",
    f"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
}
WHOLE = ("llama-bpe", "tekken")  # rules under which a word that is a token is not divided
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def add_tokenizer(writer: Any, tokenizer: Tokenizer, vocab_size: int, ends: Any) -> None:
    """Add vocabulary, merges, special tokens and chat template to a GGUFWriter.

    `ends` is the config's own token that ends a text, or several. Raises InputError for a tokenizer
    whose rules llama.cpp does not have.
    """
    from gguf import TokenType

    rules = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else {}
    model = rules.get("model", {"type": "slow"})
    if model["type"] != "BPE" or not model["merges"]:
        raise _refusal(f"is {model['type']}, and not BPE with merges")
    of_bytes = not model["byte_fallback"]  # else of SentencePiece
    texts = {place: text for text, place in model["vocab"].items()}
    kinds = dict.fromkeys(texts, TokenType.NORMAL)
    if not of_bytes:
        kinds |= {place: TokenType.BYTE for place, text in texts.items() if BYTE.fullmatch(text)}
    for each in rules["added_tokens"]:
        texts[each["id"]] = each["content"]
        special = TokenType.CONTROL if each["special"] else TokenType.USER_DEFINED
        kinds[each["id"]] = special
    every = range(vocab_size)
    listed = [texts.get(place, f"[PAD{place}]") for place in every]
    if max(texts) >= vocab_size or len(set(listed)) < vocab_size:
        raise _refusal(f"has tokens beyond the model's {vocab_size}, or two of the same text")
    _check_rules(rules, of_bytes, [*kinds.values()].count(TokenType.BYTE))
    writer.add_token_list(listed)
    writer.add_token_types([kinds.get(place, TokenType.UNUSED) for place in every])
    merges = [each if isinstance(each, list) else each.split(" ") for each in model["merges"]]
    words = _word_rule(rules["pre_tokenizer"]) if of_bytes else ""
    if bool(model["ignore_merges"]) != (words in WHOLE):
        _refuse_divided(model["vocab"], merges, {each["content"] for each in rules["added_tokens"]})
    if of_bytes:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(words)
        writer.add_token_merges([" ".join(pair) for pair in merges])
    else:
        writer.add_tokenizer_model("llama")
        ranks: dict[str, int] = {}
        for rank, pair in enumerate(merges):
            ranks.setdefault("".join(pair), rank)
        writer.add_token_scores([-float(ranks.get(text, len(merges))) for text in listed])
    _add_specials(writer, tokenizer, vocab_size, ends)
    if not of_bytes:
        first = tokens(tokenizer, "a")[:1]
        writer.add_add_space_prefix(any(texts[place].startswith("\u2581") for place in first))


def _refusal(what: str) -> InputError:
    return InputError(
        f"the tokenizer {what}, which no GGUF file holds for llama.cpp as it is: serve the model "
        "with grasp-deploy serve instead"
    )


def _check_rules(rules: dict[str, Any], of_bytes: bool, byte_tokens: int) -> None:
    """Raise InputError for rules that change tokens in transformers and not in llama.cpp."""
    model, normalizer = rules["model"], rules["normalizer"] or {"type": "none"}
    parts = normalizer.get("normalizers", [normalizer])
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    plain = [{"type": "none"}, {"type": "NFC"}] if of_bytes else [{"type": "none"}, spaces]
    if not of_bytes:
        plain.append({"type": "Prepend", "prepend": "\u2581"})
        before = rules["pre_tokenizer"] or {"type": "Metaspace", "split": False}
        if byte_tokens != 256 or before["type"] != "Metaspace":
            raise _refusal("falls back to bytes in its own way")
        if before["split"] and any("\u2581" in text[1:] for text in model["vocab"]):
            raise _refusal("divides text at spaces, though it has tokens with spaces in them")
    if any(part not in plain for part in parts):
        raise _refusal("changes text before it divides it")
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise _refusal("marks parts of words")
    if any(each[k] for each in rules["added_tokens"] for k in ("lstrip", "rstrip", "single_word")):
        raise _refusal("has added tokens that take the space beside them along")


def _refuse_divided(vocab: dict[str, int], merges: list[list[str]], added: set[str]) -> None:
    """Raise InputError for a token that merges do not make: it stands for a word in one reader."""
    bpe = BPE(vocab, [(left, right) for left, right in merges])
    if any([t.value for t in bpe.tokenize(text)] != [text] for text in vocab.keys() - added):
        raise _refusal("has rules of its own for words that are tokens")


def _word_rule(pre: Any) -> str:
    """llama.cpp's name of a pre-tokenizer; InputError for one that it does not have."""
    steps = pre["pretokenizers"] if pre and pre["type"] == "Sequence" else [pre or {}]
    first, last = steps[0] if len(steps) == 2 else {}, steps[-1] if steps else {}
    found = "" if len(steps) == 1 else first.get("pattern", {}).get("Regex", "?")
    if first.get("type") == "Digits" and first["individual_digits"]:
        found = "digits"
    elif first.get("behavior", "Isolated") != "Isolated" or first.get("invert"):
        found = "?"
    of_bytes = [last.get(key) for key in ("type", "use_regex", "add_prefix_space")]
    if found not in RULES or of_bytes != ["ByteLevel", found in ("", "digits"), False]:
        raise _refusal(f"divides words by rules other than those of {', '.join(RULES.values())}")
    return RULES[found]


def _add_specials(writer: Any, tokenizer: Tokenizer, vocab_size: int, ends: Any) -> None:
    places = {kind: getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "unk", "pad")}
    if places["eos"] is None:  # llama.cpp would take a token of its own choice
        places["eos"] = ends[0] if isinstance(ends, list) and ends else ends
    if not isinstance(places["eos"], int):
        raise _refusal("has no token that ends a text, nor has config.json")
    for kind, place in places.items():
        if place is not None:
            if place not in range(vocab_size):
                raise _refusal(f"or config.json names a token {place} of {vocab_size} ({kind})")
            getattr(writer, f"add_{kind}_token_id")(place)
    plain, whole = (tokens(tokenizer, "a", add_special_tokens=add) for add in (False, True))
    begins, stops = whole[:1] == [places["bos"]], whole[-1:] == [places["eos"]]
    if whole != [*whole[:1] * begins, *plain, *whole[-1:] * stops]:
        raise _refusal("puts more around a text than one token before and one behind")
    writer.add_add_bos_token(begins)
    writer.add_add_eos_token(stops)
    named = tokenizer.chat_template
    if isinstance(named, dict):
        named = [{"name": name, "template": text} for name, text in named.items()]
    written = [each["template"] for each in named] if isinstance(named, list) else [named or ""]
    if not all(isinstance(text, str) for text in written):
        raise _refusal("has a chat template that is no text")
    if named:
        writer.add_chat_template(named)
