"""Sequences of several sources: each as if it were read alone, and spread evenly over all."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grasp_deploy.data import (
    Blocks,
    TextSource,
    calibration_sources,
    places_of,
    read_blocks,
    read_calibration,
)
from grasp_deploy.data.mixture import shares
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()  # a byte is a token


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of one letter each: "a" of 400, "b" of 300, "c" of 90 tokens."""
    monkeypatch.chdir(tmp_path)
    for letter, tokens in (("a", 400), ("b", 300), ("c", 90)):
        rows = [{"text": letter * 10, "other": letter.upper() * 10} for _ in range(tokens // 10)]
        Path(f"{letter}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(
    texts: Sequence[str], sequences: int, split: str | None = None, column: str | None = None
) -> Blocks:
    return read_calibration(TOKENIZER, calibration_sources(texts, split, column), 8, sequences)


def test_a_column_is_for_prompts_of_the_hub_alone() -> None:
    """Beside plain text, which has no columns."""
    rows = [json.dumps({"ask": "How?"}), json.dumps({"ask": "Why?"})]
    Path("asked").mkdir()
    Path("asked/train.jsonl").write_text("\n".join(rows))
    Path("plain.txt").write_text("a" * 90)
    blocks = read(["plain.txt", "self:hf:./asked"], 4, column="ask")
    assert [bytes(ids) for ids in blocks.beginnings] == [b"How?", b"Why?"]


def letters(blocks: Blocks) -> str:
    """The letter of each sequence."""
    texts = [str(TOKENIZER.decode(row)).replace("\n", "") for row in blocks.token_ids]
    assert all(len(set(text)) == 1 for text in texts), "no sequence holds text of two sources"
    return "".join(text[0] for text in texts)


def test_each_source_gives_its_first_sequences_in_order() -> None:
    mixed = read(["a.jsonl=3", "b.jsonl", "c.jsonl"], 10)
    assert letters(mixed) == "abcaaabcaa"
    for part, places in zip(mixed.parts, places_of([6, 2, 2]), strict=True):
        alone = read_blocks(TOKENIZER, TextSource(part.source), 8, part.sequences)
        assert torch.equal(mixed.token_ids[places], alone.token_ids)


def test_a_text_that_begins_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sources = calibration_sources(["a.jsonl", "c.jsonl"])
    mixed = read_calibration(TOKENIZER, sources, 8, 40, repeats=True)
    assert len(mixed.token_ids[1::2].unique(dim=0)) < 20
    (told,) = (line for line in caplog.messages if "begins again" in line)
    assert told.startswith("text: c.jsonl has 13 of the 20 sequences to read")


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_any_run_of_sequences_has_its_share(counts: list[int]) -> None:
    places, total = places_of(counts), sum(counts)
    assert sorted(torch.cat(places).tolist()) == list(range(total))
    for place, count in zip(places, counts, strict=True):
        assert place[0] < len(counts), "every source has a sequence near the start"
        present = torch.zeros(total + 1)
        present[place + 1] = 1
        ideal = torch.arange(total + 1) * count / total
        # Within one of the share, give or take one of each other source that ties with it.
        assert (present.cumsum(0) - ideal).abs().max() < len(counts) + 1e-4


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [
        ([1, 1], 5, [3, 2]),  # equal remainders: the first
        ([0.1, 0.3], 2, [1, 1]),  # equal remainders of decimal numbers
        ([5, 3, 1], 8, [4, 3, 1]),  # 4.44, 2.67, 0.89
        ([1e6, 1, 1], 5, [3, 1, 1]),  # at least one
        ([3, 1, 0.5, 0.5], 600, [360, 120, 60, 60]),
        ([3, 1, 0.5, 0.5], 6 * 10**10, [36 * 10**9, 12 * 10**9, 6 * 10**9, 6 * 10**9]),  # at once
    ],
)
def test_shares(weights: list[float], total: int, expected: list[int]) -> None:
    assert shares(weights, total) == expected
    with pytest.raises(InputError, match=r"1 sequences cannot hold one of each .*-sequences"):
        shares(weights, 1)


@given(st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.5, 1e6]), min_size=1, max_size=6), st.data())
def test_each_next_sequence_goes_to_the_source_that_lacks_most(
    weights: list[float], data: st.DataObject
) -> None:
    total = data.draw(st.integers(len(weights), 90))
    exact = [Fraction(str(weight)) for weight in weights]
    exact = [weight * total / sum(exact) for weight in exact]
    counts = [1] * len(weights)
    while sum(counts) < total:
        lacks = [share - count for share, count in zip(exact, counts, strict=True)]
        counts[lacks.index(max(lacks))] += 1
    assert shares(weights, total) == counts
