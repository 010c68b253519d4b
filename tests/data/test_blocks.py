"""Sequences: joined by a blank line, no special tokens, no overlap, the rest dropped."""

import json
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.data import blocks as module
from grasp_deploy.data.blocks import token_blocks
from grasp_deploy.errors import InputError

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


TOKENIZERS = {"byte-level": byte_level(), "sentence-piece": sentence_piece()}
DOCUMENT = st.one_of(
    st.sampled_from(["", " ", "\n", "  \n", "the", " cat\n", "\n\nthe", "sat  ", "é", "\u0301"]),
    st.sampled_from(ENGLISH),
    st.text(max_size=12),
)


def naive_ids(tokenizer: Any, documents: list[str]) -> list[int]:
    return tokenizer("\n\n".join(documents), add_special_tokens=False, verbose=False)["input_ids"]


@settings(max_examples=200, deadline=None)
@given(
    # The usual guess leaves so much room that it would hide a margin that is too small.
    guess=st.sampled_from([0, 0, 6]),
    name=st.sampled_from(sorted(TOKENIZERS)),
    documents=st.lists(DOCUMENT, min_size=1, max_size=40),
    sequence_length=st.integers(2, 6),
    sequences=st.integers(1, 5),
)
# Blanks at a document's end, and documents of nothing else, belong to tokens that reach further.
@example(0, "byte-level", ["sat  ", "", "cat"], 3, 1)
@example(0, "byte-level", [" ", "\n", "", "the"], 3, 1)
def test_first_sequences_equal_those_of_the_whole_text(
    guess: int, name: str, documents: list[str], sequence_length: int, sequences: int
) -> None:
    tokenizer = TOKENIZERS[name]
    ids = naive_ids(tokenizer, documents)
    needed = sequence_length * sequences
    if len(ids) < needed:
        with pytest.raises(InputError, match="too short"):
            token_blocks(tokenizer, documents, sequence_length, sequences, "x")
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHARACTERS_PER_TOKEN", guess)
        first = token_blocks(tokenizer, documents, sequence_length, sequences, "x")
    assert first.flatten().tolist() == ids[:needed]
    every = token_blocks(tokenizer, documents, sequence_length, None, "x")
    assert every.shape == (len(ids) // sequence_length, sequence_length)
    assert every.flatten().tolist() == ids[: every.numel()]


def test_only_as_much_text_is_tokenised_as_is_needed() -> None:
    characters = 0

    def counting(text: str, **options: bool) -> Any:
        nonlocal characters
        characters += len(text)
        return TOKENIZERS["byte-level"](text, **options)

    token_blocks(counting, ENGLISH * 1000, 16, 8, "x")  # type: ignore[arg-type]
    assert characters < 16 * 8 * 20
    characters = 0
    long_documents = ["the cat " * 200] * 200  # each far longer than what is needed
    token_blocks(counting, long_documents, 16, 8, "x")  # type: ignore[arg-type]
    assert characters < 40 * 1602


def test_too_little_text() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    most, tokens = divmod(len(naive_ids(tokenizer, ENGLISH)), 8)
    with pytest.raises(InputError) as caught:
        token_blocks(tokenizer, ENGLISH, 8, most + 1, "a.txt")
    assert str(caught.value) == (
        f"a.txt is too short: its {8 * most + tokens} tokens give {most} sequences of 8 tokens, "
        f"and {most + 1} are needed; use more text, fewer sequences or a shorter "
        "--sequence-length"
    )
    with pytest.raises(InputError, match=r"give 0 sequences of 512 .* 1 are needed"):
        token_blocks(tokenizer, ["the cat"], 512, None, "a.txt")
    for sequence_length, sequences in ((1, 4), (8, 0)):
        with pytest.raises(InputError, match="use 1 sequence or more, and --sequence-length"):
            token_blocks(tokenizer, ENGLISH, sequence_length, sequences, "a.txt")


def test_provenance_tells_texts_apart() -> None:
    ids = torch.arange(12).view(3, 4)
    source = TextSource("a.jsonl", "train[:5]", "body")
    record, other = Blocks(ids, source, 5).as_dict(), Blocks(ids + 1, source, 5).as_dict()
    assert record.pop("token_ids_sha256") != other.pop("token_ids_sha256")
    assert record == other
    where = {"source": "a.jsonl", "split": "train[:5]", "column": "body"}
    assert record == {**where, "documents": 5, "sequence_length": 4, "sequences": 3}
