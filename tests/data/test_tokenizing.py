"""The first tokens of a long text are those of one call; and failures are one line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grasp_deploy.data.tokenizing import first_tokens, tokens
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

ROOT = Path(__file__).parents[2]
ENGLISH = ["the cat sat on the mat, the other cat did not", "Then  they  sat.  It's the end!"] * 20


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


def gpt_4() -> PreTrainedTokenizerFast:
    """Like Llama 3, Qwen: line ends belong to the marks before them; offsets leave blanks out."""
    pattern = (
        r"(?i:'[sdmt]|'ll|'ve|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*ENGLISH, "end!\n\n/the"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {
    "sentence-piece": sentence_piece(),
    "gpt-4": gpt_4(),
    "demo": AutoTokenizer.from_pretrained(ROOT / "grasp_deploy" / "demo" / "model"),
}
DOCUMENT = st.one_of(
    st.sampled_from(["", " ", "\n", "  \n", "the", " cat\n", "\n\nthe", "sat  ", "é", "\u0301"]),
    st.sampled_from(["!\r\n\r\n", "/ the", "\u3000中文", "🙂 e\u0301\n1234", "<s>", "</s>\n a"]),
    st.sampled_from(ENGLISH),
    st.text(max_size=12),
)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    documents=st.lists(DOCUMENT, min_size=1, max_size=40),
    needed=st.integers(1, 300) | st.just(10**24),
)
def test_tokens_equal_those_of_one_call(name: str, documents: list[str], needed: int) -> None:
    documents = [document or " " for document in documents for _ in range(2)]
    lines = "\n".join(documents).split("\n")
    ids = tokens(TOKENIZERS[name], "\n\n".join(lines))
    first = first_tokens(TOKENIZERS[name], lines, needed)
    assert first == ids[: len(first)] and len(first) >= min(needed, len(ids))


def test_a_token_that_two_lines_share_is_not_cut() -> None:
    """Some tokenizers see lines as any other text: the last tokens before a cut are not sure."""
    vocabulary = {"a": 0, "\n": 1, "\na": 2}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=vocabulary, merges=[("\n", "a")]))
    )
    documents = ["a" * 99] * 3
    ids = tokens(tokenizer, "\n\n".join(documents))
    assert ids[98:101] == [0, 1, 2]
    first = first_tokens(tokenizer, documents, 10)
    assert 10 <= len(first) < 101 and first == ids[: len(first)]


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_only_as_much_text_is_tokenised_as_is_needed(name: str) -> None:
    lengths = []

    def counting(text: str, **options: bool) -> Any:
        lengths.append(len(text))
        return TOKENIZERS[name](text, **options)

    assert len(first_tokens(counting, ENGLISH * 20, 128)) >= 128  # type: ignore[arg-type]
    assert sum(lengths) < 3500 < len("\n\n".join(ENGLISH * 20)) / 5


def test_a_panic_on_one_text_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    backend = tiny_tokenizer().backend_tokenizer
    split = pre_tokenizers.Split(Regex(r"(z+z?)+\d$"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, backend.pre_tokenizer])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    with pytest.raises(InputError, match=r"cannot read this text \(PanicException: Onig.*: put"):
        tokens(tokenizer, "z" * 60)
    assert tokens(tokenizer, "zz") == tokens(tiny_tokenizer(), "zz")
    assert capfd.readouterr().err == ""
    os.write(2, b"back")
    assert capfd.readouterr().err == "back"
