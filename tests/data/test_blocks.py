"""Sequences: joined by a blank line, no special tokens, no overlap, the rest dropped."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grasp_deploy.data import Blocks, Part, TextSource, read_blocks
from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

TEXTS = ["the cat sat on the mat, the other cat did not", "Then  they  sat.  It's the end!"]
MOST = len("\n\n".join(TEXTS)) // 8  # sequences of 8 tokens, of a byte each


def token_blocks(tokenizer: Any, folder: Path, texts: list[str], length: int, count: int) -> Tensor:
    source = folder / "texts.json"
    source.write_text(json.dumps(texts))
    return read_blocks(tokenizer, TextSource(str(source)), length, count).token_ids


def test_sequences_of_the_joined_text(tmp_path: Path) -> None:
    tokenizer, joined = tiny_tokenizer(), "\n\n".join(TEXTS).encode()
    first = token_blocks(tokenizer, tmp_path, TEXTS, 8, 6)
    assert first.shape == (6, 8) and first.dtype == torch.int64
    every = token_blocks(tokenizer, tmp_path, TEXTS, 8, MOST)
    assert every.shape == (MOST, 8) and torch.equal(every[:6], first)
    assert bytes(every.flatten().tolist()) == joined[: every.numel()]


def test_gemmas_sequences_begin_with_its_first_token(tmp_path: Path) -> None:
    gemma, plain = tiny_tokenizer(), tiny_tokenizer()
    gemma.bos_token, gemma.needs_first_token = "!", True
    assert tokens(gemma, "a", add_special_tokens=True) == [ord("!"), ord("a")]
    assert tokens(gemma, "!a", add_special_tokens=True) == [ord("!"), ord("a")]
    assert tokens(gemma, "a") == [ord("a")]
    blocks = token_blocks(gemma, tmp_path, TEXTS, 8, 6)
    assert blocks.shape == (6, 8) and set(blocks[:, 0].tolist()) == {ord("!")}
    assert torch.equal(blocks[:, 1:], token_blocks(plain, tmp_path, TEXTS, 7, 6))
    begun = [f"!{TEXTS[0]}", TEXTS[1]]  # as a template writes a chat
    assert torch.equal(token_blocks(gemma, tmp_path, begun, 8, 6), blocks)


def test_too_little_text(tmp_path: Path) -> None:
    for length, sequences in ((8, MOST + 1), (512, 1)):
        with pytest.raises(InputError, match="fewer or shorter sequences"):
            token_blocks(tiny_tokenizer(), tmp_path, TEXTS, length, sequences)


@pytest.mark.parametrize("beginnings", [[], [[1, 2], [3]], [[7] * 50] * 20_000])
def test_sequences_that_are_packed_and_unpacked(beginnings: list[list[int]]) -> None:
    """The record is a header, of which no reader takes a long one."""
    parts = (Part("self", 1.0, None, 2), Part("a", 0.5, "train", 1))
    blocks = Blocks(torch.arange(12).view(3, 4), TextSource("a"), parts, beginnings)
    tensors, record = blocks.packed()
    text = json.dumps(record)
    assert len(text) < 1000
    again = Blocks.unpacked(tensors, json.loads(text))
    assert torch.equal(again.token_ids, blocks.token_ids)
    assert replace(again, token_ids=blocks.token_ids) == blocks
    with pytest.raises(InputError, match="--overwrite"):
        Blocks.unpacked(tensors, {**record, "other": 1})


def test_provenance_tells_texts_apart() -> None:
    ids = torch.arange(12).view(3, 4)
    source = TextSource("a.jsonl", "train[:5]", "body")
    record, other = Blocks(ids, source).as_dict(), Blocks(ids + 1, source).as_dict()
    assert record.pop("token_ids_sha256") != other.pop("token_ids_sha256")
    assert record == other
    where = {"source": "a.jsonl", "split": "train[:5]", "column": "body"}
    assert record == {**where, "sequence_length": 4, "sequences": 3}
