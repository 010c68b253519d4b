"""Tokens found window by window are those of one call, whatever the text and the tokenizer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerFast

from grasp_deploy.data import windows
from grasp_deploy.data.windows import first_tokens

ROOT = Path(__file__).parents[2]
NAMES = ("ref-llama-7m", "stories260K", "babyllama105")  # may be absent
FOLDERS = [
    ROOT / "grasp_deploy" / "demo" / "model",
    *(ROOT.parent / "shared" / "models" / name for name in NAMES),
]
ENGLISH = ["the cat sat on the mat, the other cat did not", "Then  they  sat.  It's the end!"] * 20


def byte_level() -> PreTrainedTokenizerFast:
    """Like Llama 3, Qwen: a pattern cuts the text, bytes are merged within the cuts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    blank_lines = ["the \n\n", "\n\n\n\n", "cat\n\n  sat"] * 20  # tokens that span blanks and lines
    tokenizer.train_from_iterator(ENGLISH + blank_lines, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Like Llama 2, Mistral: no cuts at all; blanks are symbols, unknown characters bytes."""
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = blanks
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator([blanks.normalize_str(text) for text in ENGLISH], trainer)
    vocabulary = tokenizer.get_vocab()
    state = tokenizer.model.__getstate__()
    merges = [tuple(pair) for pair in json.loads(state)["merges"]]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer.model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def split_by(pattern: str) -> PreTrainedTokenizerFast:
    """Byte-level as well, with a pattern of its own; offsets leave the blank before a word out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*ENGLISH, "end!\n\n/the"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


GPT4 = (
    r"(?i:'[sdmt]|'ll|'ve|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENIZERS = {
    "byte-level": byte_level(),
    "sentence-piece": sentence_piece(),
    "gpt-4": split_by(GPT4),
    **{path.name: AutoTokenizer.from_pretrained(path) for path in FOLDERS if path.is_dir()},
}
DOCUMENT = st.one_of(
    st.sampled_from(["", " ", "\n", "  \n", "the", " cat\n", "\n\nthe", "sat  ", "é", "\u0301"]),
    st.sampled_from(
        ["!\r\n\r\n", "/ the", "\u3000中文", "🙂 e\u0301\n1234", "<s>", "the </s>\n a"]
    ),
    st.sampled_from(ENGLISH),
    st.text(max_size=12),
)


def naive_ids(tokenizer: Any, documents: list[str]) -> list[int]:
    return tokenizer("\n\n".join(documents), add_special_tokens=False, verbose=False)["input_ids"]


@contextmanager
def small_windows(window: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WINDOW": window, "PASSAGE": 50, "OVERLAP": 100, "AGREEING": 6}.items():
            patch.setattr(windows, name, value)
        yield


@settings(max_examples=300, deadline=None)
@given(
    window=st.sampled_from([1, 20, 200]),
    name=st.sampled_from(sorted(TOKENIZERS)),
    documents=st.lists(DOCUMENT, min_size=1, max_size=40),
    needed=st.integers(1, 1000),
)
def test_tokens_equal_those_of_one_call(
    window: int, name: str, documents: list[str], needed: int
) -> None:
    ids = naive_ids(TOKENIZERS[name], documents)
    with small_windows(window):
        assert first_tokens(TOKENIZERS[name], documents, None).tolist() == ids
        first = first_tokens(TOKENIZERS[name], documents, needed).tolist()
    assert first == ids[: len(first)] and len(first) >= min(needed, len(ids))


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@pytest.mark.parametrize("documents", [ENGLISH * 20, *([end.join(ENGLISH * 20)] for end in "\n ")])
def test_only_as_much_text_is_tokenised_as_is_needed(name: str, documents: list[str]) -> None:
    lengths = []

    def counting(text: str, **options: bool) -> Any:
        lengths.append(len(text))
        return TOKENIZERS[name](text, **options)

    ids = naive_ids(TOKENIZERS[name], documents)
    with small_windows(500):
        assert first_tokens(counting, documents, None).tolist() == ids  # type: ignore[arg-type]
        assert max(lengths) < 500 + 2 * 100 + 100 and sum(lengths) > 30_000  # 100: to a line's end
        lengths.clear()
        first_tokens(counting, documents, 128)  # type: ignore[arg-type]
        assert sum(lengths) < 3000
    with small_windows(1):
        for needed in range(1, 200):  # some of them end where a window does
            assert len(first_tokens(TOKENIZERS[name], documents, needed)) >= needed


@pytest.mark.parametrize("is_fast", [True, False])
def test_what_windows_do_not_suit_is_read_at_once(is_fast: bool) -> None:
    """Tokens of three characters, wherever a window starts; and no places of tokens at all."""
    threes = split_by(r"[\s\S]{3}")

    def tokenizer(text: str, **options: bool) -> BatchEncoding:
        encoded = threes(text, **options)
        return encoded if is_fast else BatchEncoding(dict(encoded))

    with small_windows(20):
        ids = first_tokens(tokenizer, ENGLISH, None)  # type: ignore[arg-type]
    assert ids.tolist() == naive_ids(threes, ENGLISH)


def test_tokens_that_are_alike_may_begin_elsewhere() -> None:
    """Tokens of several words: where one begins depends on where the text does."""
    longer = ["-a", "-a-a", "-a-a-a-a"]
    merges = [("-", "a"), *((token, token) for token in longer[:-1])]
    words = Tokenizer(models.BPE({t: place for place, t in enumerate(["-", "a", *longer])}, merges))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    with small_windows(20):
        ids = first_tokens(tokenizer, ["-a" * 400], None)
    assert ids.tolist() == naive_ids(tokenizer, ["-a" * 400])
