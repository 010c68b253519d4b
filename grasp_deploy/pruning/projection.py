"""Scores to a mask under one global budget: the projection of section 3.3, with aligned shapes.

Units are ranked by their keep probability `p`, and the prefix of the ranking that fits the budget
is kept. Where a layer must keep a multiple of `a` channels (or `t` groups), the ranking of that
layer is cut into chunks of `a`, a chunk counts with its mean `p` and its summed cost, and the same
prefix rule runs over chunks. With multiples of 1 a chunk is a unit, and the rule is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grasp_deploy.pruning.units import UnitTable


class BudgetError(ValueError):
    """No mask can meet the budget or the multiples.

    `smallest_limit` is the least budget that any ranking can meet, where that is what was missed.
    """

    def __init__(self, message: str, smallest_limit: float | None = None) -> None:
        super().__init__(message)
        self.smallest_limit = smallest_limit


@dataclass(frozen=True)
class Budget:
    """All that the projection needs beside the scores: costs, limit, multiples, order of ties.

    Tensors live on the device of the scores. Build with `make_budget`, which checks it.
    """

    units: UnitTable
    costs: Tensor  # (N,) float64, >= 0
    limit: float  # B, in the unit of the costs
    ffn_multiple: int
    kv_multiple: int
    tie_order: Tensor  # (N,) int64: the units in the order in which equals are taken
    segment_of_unit: Tensor  # (N,) int64

    @property
    def total_cost(self) -> float:
        return float(self.costs.sum())

    def cost_of(self, mask: Tensor) -> float:
        """Summed cost of the units that a `(N,)` mask keeps."""
        return float(self.costs[mask.bool()].sum())


def make_budget(
    units: UnitTable,
    costs: Tensor,
    limit: float,
    *,
    ffn_multiple: int = 1,
    kv_multiple: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Budget:
    """A checked budget; `seed` decides the order of units whose scores are equal.

    Scores start equal, so that order makes the first masks. A permutation drawn on the CPU is the
    same on every device and, unlike the order of a stable sort, favours no layer.

    Costs are rounded to a grid, fine enough to matter to nobody, on which sums are exact: a sum is
    the same in every order and on every device.

    Raises BudgetError if no mask fits: a limit under the floor, or multiples no layer can meet.
    """
    if not bool((costs > 0).any()):
        raise BudgetError("no unit costs anything under this cost model: there is nothing to prune")
    costs = exactly_summable(costs)
    of_segment = costs.cpu().split(units.segment_sizes)
    _check_multiple("FFN channels", ffn_multiple, of_segment[0::2])
    _check_multiple("KV groups", kv_multiple, of_segment[1::2])
    generator = torch.Generator().manual_seed(seed)
    budget = Budget(
        units=units,
        costs=costs.to(device),
        limit=float(limit),
        ffn_multiple=ffn_multiple,
        kv_multiple=kv_multiple,
        tie_order=torch.randperm(units.size, generator=generator).to(device),
        segment_of_unit=units.segment_of_unit.to(device),
    )
    floor = smallest_limit(budget)
    if limit < floor:
        raise BudgetError(
            f"the budget {limit:,.12g} is under the floor {floor:,.12g}, the cost of the least "
            f"that every layer keeps ({ffn_multiple} FFN channels, {kv_multiple} KV groups)",
            smallest_limit=floor,
        )
    return budget


def exactly_summable(costs: Tensor) -> Tensor:
    """`(N,)` float64 costs on a grid, a power of two, on which adding up any of them is exact.

    Float64 has 53 bits, and the grid leaves room for the largest cost times the number of units.
    Costs that are on it already do not change. The largest lies between 1e-100 and 1e100, or is 0.
    """
    costs = costs.double()
    largest = float(costs.max())
    if largest == 0:
        return costs
    grid = 2.0 ** (52 - math.ceil(math.log2(largest)) - math.ceil(math.log2(len(costs))))
    return (costs * grid).round() / grid


def _check_multiple(noun: str, multiple: int, costs_of_layer: Sequence[Tensor]) -> None:
    """Every layer must reach the multiple, and complete it around units that cost nothing."""
    smallest = min(len(costs) for costs in costs_of_layer)
    for layer, costs in enumerate(costs_of_layer):
        size, free = len(costs), int((costs == 0).sum())
        if multiple > size:
            raise BudgetError(
                f"layer {layer} has {size} {noun}, fewer than the multiple {multiple} that "
                f"each layer must keep: choose at most {smallest}"
            )
        if free + -free % multiple > size:
            raise BudgetError(
                f"layer {layer} has {size} {noun}, no multiple of {multiple}, and this budget "
                f"removes {size - free} of them: drop the multiple or let more be pruned"
            )


def smallest_limit(budget: Budget) -> float:
    """The smallest limit that any ranking can meet: each segment keeps its dearest chunk."""
    floor = 0.0
    for segment, costs in enumerate(budget.costs.cpu().split(budget.units.segment_sizes)):
        multiple = budget.kv_multiple if segment % 2 else budget.ffn_multiple
        free = int((costs == 0).sum())
        payable = -free % multiple if free else multiple  # free units need company to fill a chunk
        floor += float(costs.topk(payable).values.sum())
    return floor


def project(probabilities: Tensor, budget: Budget) -> Tensor:
    """The `(N,)` bool mask of the units kept, ranked by `(N,)` keep probabilities.

    Sort descending, take the prefix that fits, stop at the first chunk that does not (equation 5).
    All chunks with a unit of cost 0, and the best chunk of every segment that has none, are kept
    beforehand, and the budget holds with them: `budget.cost_of(mask) <= budget.limit` always.
    """
    chunk_of_unit, chunks = _chunks(probabilities, budget)
    order = descending(chunks.score, chunks.tie_order)
    reserved = _first_of_each_segment(order, chunks, 2 * budget.units.layers) | chunks.free
    left = budget.limit - torch.where(reserved, chunks.cost, 0.0).sum()
    # Reserved and incomplete chunks cost nothing in the running sum: the former are paid for, and
    # the latter are never taken.
    payable = torch.where(reserved | ~chunks.complete, 0.0, chunks.cost)
    fits = torch.zeros_like(reserved)
    fits[order] = payable[order].cumsum(0) <= left
    kept = reserved | (fits & chunks.complete)
    return kept if chunk_of_unit is None else kept[chunk_of_unit]


@dataclass(frozen=True)
class _Chunks:
    """What the prefix rule sees of the M chunks."""

    score: Tensor  # (M,) mean probability
    cost: Tensor  # (M,) float64 summed cost
    tie_order: Tensor  # (M,) int64: the chunks in the order in which equals are taken
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

    tie_rank = torch.empty_like(budget.tie_order)
    tie_rank[budget.tie_order] = torch.arange(budget.units.size, device=tie_rank.device)
    first_tie = torch.full_like(sizes, budget.units.size)
    first_tie.scatter_reduce_(0, chunk_of_unit, tie_rank, "amin")
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
    place = torch.arange(budget.units.size, device=order.device)
    place -= (unit_counts.cumsum(0) - unit_counts)[budget.segment_of_unit[order]]
    ranks = torch.empty_like(order)
    ranks[order] = place
    return ranks


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


def descending(scores: Tensor, tie_order: Tensor) -> Tensor:
    """Indices from the highest score to the lowest, equals in the order given."""
    return tie_order[torch.argsort(scores[tie_order], descending=True, stable=True)]


def _first_of_each_segment(order: Tensor, chunks: _Chunks, segments: int) -> Tensor:
    """`(M,)` bool: the complete chunk that each segment ranks first; free ones come first."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    rank = torch.where(chunks.free, -1, rank)
    rank = torch.where(chunks.complete, rank, len(order))
    best = torch.full((segments,), len(order), device=order.device)
    best.scatter_reduce_(0, chunks.segment, rank, "amin")
    return (rank == best[chunks.segment]) & chunks.complete
