"""Sequences: joined by a blank line, no special tokens, no overlap, the rest dropped."""

import pytest
import torch

from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.data.blocks import token_blocks
from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

TEXTS = ["the cat sat on the mat, the other cat did not", "Then  they  sat.  It's the end!"]


def test_sequences_of_the_joined_text() -> None:
    tokenizer, joined = tiny_tokenizer(), "\n\n".join(TEXTS).encode()
    first = token_blocks(tokenizer, TEXTS, 8, 6, "x")
    assert first.shape == (6, 8) and first.dtype == torch.int64
    every = token_blocks(tokenizer, TEXTS, 8, None, "x")
    assert every.shape == (len(joined) // 8, 8) and torch.equal(every[:6], first)
    assert bytes(every.flatten().tolist()) == joined[: every.numel()]


def test_gemmas_sequences_begin_with_its_first_token() -> None:
    gemma, plain = tiny_tokenizer(), tiny_tokenizer()
    gemma.bos_token, gemma.needs_first_token = "!", True
    assert tokens(gemma, "a", add_special_tokens=True) == [ord("!"), ord("a")]
    assert tokens(gemma, "!a", add_special_tokens=True) == [ord("!"), ord("a")]
    assert tokens(gemma, "a") == [ord("a")]
    blocks = token_blocks(gemma, TEXTS, 8, 6, "x")
    assert blocks.shape == (6, 8) and set(blocks[:, 0].tolist()) == {ord("!")}
    assert torch.equal(blocks[:, 1:].flatten(), token_blocks(plain, TEXTS, 7, 6, "x").flatten())
    begun = [f"!{TEXTS[0]}", TEXTS[1]]  # as a template writes a chat
    assert torch.equal(token_blocks(gemma, begun, 8, 6, "x"), blocks)


def test_too_little_text() -> None:
    tokenizer = tiny_tokenizer()  # a token for each byte
    most = len("\n\n".join(TEXTS)) // 8
    assert len(token_blocks(tokenizer, TEXTS, 8, most, "a.txt")) == most
    for length, sequences in ((8, most + 1), (512, None)):
        with pytest.raises(InputError, match="--sequence-length"):
            token_blocks(tokenizer, TEXTS, length, sequences, "a.txt")


def test_provenance_tells_texts_apart() -> None:
    ids = torch.arange(12).view(3, 4)
    source = TextSource("a.jsonl", "train[:5]", "body")
    record, other = Blocks(ids, source, 5).as_dict(), Blocks(ids + 1, source, 5).as_dict()
    assert record.pop("token_ids_sha256") != other.pop("token_ids_sha256")
    assert record == other
    where = {"source": "a.jsonl", "split": "train[:5]", "column": "body"}
    assert record == {**where, "documents": 5, "sequence_length": 4, "sequences": 3}
