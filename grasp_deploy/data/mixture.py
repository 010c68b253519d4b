"""Calibration text: the blocks of one source, or those of several, interleaved by their weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grasp_deploy.data.blocks import (
    Blocks,
    Part,
    calibration_split,
    read_blocks,
    read_documents,
    token_blocks,
)
from grasp_deploy.data.sources import WeightedSource, shares, weighted_sources

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_calibration(
    tokenizer: PreTrainedTokenizerBase,
    sources: str,
    split: str | None,
    column: str | None,
    sequence_length: int,
    sequences: int,
) -> Blocks:
    """Read the sources that `weighted_sources` knows; `split` and `column` are those of each.

    Of several, each gives its share of the `sequences` blocks, spread evenly over all of them.
    Errors: those of `weighted_sources`, `shares` and `read_blocks`.
    """
    named = weighted_sources(sources)
    if len(named) == 1:
        (name,) = (source.name for source in named)
        split = calibration_split(name, split)
        return read_blocks(tokenizer, name, split, column, sequence_length, sequences)
    counts = shares([source.weight for source in named], sequences)
    token_ids, parts = [], []
    for source, count in zip(named, counts, strict=True):
        part_split = calibration_split(source.name, split)
        documents = read_documents(source.name, part_split, column, tokenizer)
        token_ids.append(
            token_blocks(tokenizer, documents, sequence_length, count, mixed=source.name)
        )
        parts.append(_part(source, part_split, count, documents))
    mixed = torch.empty(sequences, sequence_length, dtype=torch.int64)
    for places, blocks in zip(places_of(counts), token_ids, strict=True):
        mixed[places] = blocks
    documents_in_all = sum(part.documents for part in parts)
    return Blocks(mixed, sources, split, column, documents_in_all, tuple(parts))


def places_of(counts: Sequence[int]) -> list[Tensor]:
    """Where the blocks of each source stand among all: `(count,)` int64 each, ascending.

    The `k`-th of `n` blocks belongs `k/n` of the way, the first named source first: every source
    has a block near the start, and any run of blocks has its share of each.
    """
    wanted = [
        (Fraction(place, count), source)
        for source, count in enumerate(counts)
        for place in range(count)
    ]
    order = torch.tensor([source for _, source in sorted(wanted)])
    return [(order == source).nonzero().flatten() for source in range(len(counts))]


def _part(
    source: WeightedSource, split: str | None, sequences: int, documents: Sequence[str]
) -> Part:
    return Part(source.name, source.weight, split, sequences, len(documents))
