"""Scores to a mask under one global budget: the projection of section 3.3, with aligned shapes.

Units are ranked by their keep probability `p`, and the prefix of the ranking that fits the budget
is kept. Where a layer must keep a multiple of `a` channels (or `t` groups), the ranking of that
layer is cut into chunks of `a`. A chunk counts with its mean `p` and its summed cost, and the same
prefix rule runs over chunks. With multiples of 1 a chunk is a unit, and the rule is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget


def project(probabilities: Tensor, budget: Budget) -> Tensor:
    """`(N,)` bool mask of the kept units, ranked by `(N,)` keep probabilities.

    Sort descending, keep the prefix that fits, stop at the first chunk that does not (equation 5).
    All chunks with a unit of cost 0, and the best chunk of every segment that has none, are kept
    beforehand. The budget holds with them: `budget.cost_of(mask) <= budget.limit` always.
    """
    chunk_of_unit, chunks = _chunks(probabilities, budget)
    order = descending(chunks.score, chunks.tie_order)
    reserved = _first_of_each_segment(order, chunks, 2 * budget.units.layers) | chunks.free
    left = budget.limit - torch.where(reserved, chunks.cost, 0.0).sum()
    # Reserved and incomplete chunks cost nothing in the running sum: the former are paid for, and
    # the latter are never kept.
    payable = torch.where(reserved | ~chunks.complete, 0.0, chunks.cost)
    fits = torch.zeros_like(reserved)
    fits[order] = payable[order].cumsum(0) <= left
    kept = reserved | (fits & chunks.complete)
    return kept if chunk_of_unit is None else kept[chunk_of_unit]


@dataclass(frozen=True)
class _Chunks:
    """The M chunks over which the prefix rule runs."""

    score: Tensor  # (M,) mean probability
    cost: Tensor  # (M,) float64 summed cost
    tie_order: Tensor  # (M,) int64: chunks of equal score in the order in which they are kept
    segment: Tensor  # (M,) int64
    complete: Tensor  # (M,) bool: has as many units as its multiple asks for
    free: Tensor  # (M,) bool: holds a unit of cost 0


def _chunks(probabilities: Tensor, budget: Budget) -> tuple[Tensor | None, _Chunks]:
    """Chunk of each unit (None: every unit is its own chunk) and the chunks."""
    if budget.ffn_multiple == 1 and budget.kv_multiple == 1:
        everywhere = torch.ones_like(budget.segment_of_unit, dtype=torch.bool)
        free = budget.costs == 0
        return None, _Chunks(
            probabilities, budget.costs, budget.tie_order, budget.segment_of_unit, everywhere, free
        )
    chunk_of_unit, sizes, segment = _cut_rankings(probabilities, budget)
    multiples = torch.where(segment % 2 == 1, budget.kv_multiple, budget.ffn_multiple)
    total = len(sizes)

    def summed(values: Tensor) -> Tensor:
        zeros = torch.zeros(total, dtype=torch.float64, device=values.device)
        return zeros.index_add_(0, chunk_of_unit, values.double())

    first_tie = torch.full_like(sizes, budget.units.size)
    first_tie.scatter_reduce_(0, chunk_of_unit, _places(budget.tie_order), "amin")
    return chunk_of_unit, _Chunks(
        score=summed(probabilities) / sizes,
        cost=summed(budget.costs),
        tie_order=torch.argsort(first_tie),
        segment=segment,
        complete=sizes == multiples,
        free=(summed(budget.costs == 0) > 0) & (sizes == multiples),
    )


def rank_in_segment(probabilities: Tensor, budget: Budget) -> Tensor:
    """`(N,)` int64 rank of each unit in its segment, 0 for the best, as the projection ranks them.

    Units of cost 0 are always kept: they lead the ranking of their segment.
    """
    rank_key = torch.where(budget.costs == 0, torch.inf, probabilities)
    order = descending(rank_key, budget.tie_order)
    order = order[torch.argsort(budget.segment_of_unit[order], stable=True)]
    unit_counts = torch.tensor(budget.units.segment_sizes, device=order.device)
    segment_starts = unit_counts.cumsum(0) - unit_counts
    return _places(order) - segment_starts[budget.segment_of_unit]


def descending(scores: Tensor, tie_order: Tensor) -> Tensor:
    """Indices from the highest score to the lowest, equals in the order given."""
    return tie_order[torch.argsort(scores[tie_order], descending=True, stable=True)]


def _cut_rankings(probabilities: Tensor, budget: Budget) -> tuple[Tensor, Tensor, Tensor]:
    """Cut each segment's ranking: chunk of unit (N,), chunk sizes (M,), chunk segments (M,)."""
    ranks = rank_in_segment(probabilities, budget)
    unit_counts = torch.tensor(budget.units.segment_sizes, device=ranks.device)
    multiples = torch.tensor(
        [budget.ffn_multiple, budget.kv_multiple] * budget.units.layers, device=ranks.device
    )
    chunk_counts = (unit_counts + multiples - 1) // multiples
    chunk_starts = chunk_counts.cumsum(0) - chunk_counts
    segments = budget.segment_of_unit
    chunk_of_unit = chunk_starts[segments] + ranks // multiples[segments]
    segment_of_chunk = torch.arange(len(chunk_counts), device=ranks.device)
    segment_of_chunk = segment_of_chunk.repeat_interleave(chunk_counts)
    return chunk_of_unit, torch.bincount(chunk_of_unit), segment_of_chunk


def _first_of_each_segment(order: Tensor, chunks: _Chunks, segments: int) -> Tensor:
    """`(M,)` bool: the complete chunk that each segment ranks first; free ones come first."""
    rank = torch.where(chunks.free, -1, _places(order))
    rank = torch.where(chunks.complete, rank, len(order))
    best = torch.full((segments,), len(order), device=order.device)
    best.scatter_reduce_(0, chunks.segment, rank, "amin")
    return (rank == best[chunks.segment]) & chunks.complete


def _places(order: Tensor) -> Tensor:
    """`(n,)` place of each index in an order: the inverse of a permutation."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places
