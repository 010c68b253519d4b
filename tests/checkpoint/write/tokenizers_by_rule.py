"""Tokenizers of byte pairs, one for each set of rules that a GGUF file can name."""

import json
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.cli.command import REPOSITORY


def trained(pre: Any, **kept: Any) -> Tokenizer:
    """A BPE tokenizer of 600 tokens."""
    tokenizer = Tokenizer(models.BPE(**kept))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=letters)
    tokenizer.train([str(REPOSITORY / "LICENSE")], trainer)
    return tokenizer


def of_words(rule: str) -> Tokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in ("", "digits"))
    first = {
        "": [],
        "digits": [pre_tokenizers.Digits(individual_digits=True)],
    }.get(rule, [pre_tokenizers.Split(Regex(rule), "isolated")])
    return trained(pre_tokenizers.Sequence([*first, plain]))


def with_a_word(tokenizer: Tokenizer, is_whole: bool) -> Tokenizer:
    """The tokenizer with a token that no merge makes; it stands for a word if `is_whole`."""
    rules = json.loads(tokenizer.to_str())
    rules["model"]["vocab"]["\u0120xylophone"] = len(rules["model"]["vocab"])
    rules["model"]["ignore_merges"] = is_whole
    return Tokenizer.from_str(json.dumps(rules))


def of_sentencepiece() -> Tokenizer:
    """A tokenizer as those of LLaMA 2: bytes stand for what it has no letters for."""
    spaces = normalizers.Replace(" ", "\u2581")
    plain = Tokenizer(models.BPE())
    plain.normalizer = spaces
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    plain.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    plain.train([str(REPOSITORY / "LICENSE")], trainer)
    model = json.loads(plain.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            {name: place for place, name in enumerate(names)},
            [tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
