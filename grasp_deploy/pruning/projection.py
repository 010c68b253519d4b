"""Scores to a mask under one global budget: the projection of section 3.3, with aligned shapes.

Units are ranked by their keep probability `p`, and the prefix of the ranking that fits the budget
is kept. Where a layer must keep a multiple of `a` channels (or `t` groups), the ranking of that
layer is cut into chunks of `a`. A chunk counts with its mean `p` and its summed cost, and the same
prefix rule runs over chunks. With multiples of 1 a chunk is a unit, and the rule is the paper's.
"""

from functools import partial

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget


def project(probabilities: Tensor, budget: Budget) -> Tensor:
    """`(N,)` bool mask of the kept units, ranked by `(N,)` keep probabilities.

    Sort descending, keep the prefix that fits, stop at the first chunk that does not (equation 5).
    All chunks with a unit of cost 0, and the least that every segment keeps, are kept beforehand.
    The budget holds with them: `budget.cost_of(mask) <= budget.limit` always.
    """
    segment, (ranks, chunk_of_unit, order) = budget.segment_of_unit, chunked(probabilities, budget)
    summed = partial(_summed, chunk_of_unit, len(order))
    multiples = torch.tensor(budget.multiples, device=ranks.device)[segment]
    is_whole = summed(torch.ones_like(budget.costs))[chunk_of_unit] == multiples  # others go
    reserved = summed(budget.costs == 0) > 0
    least = torch.tensor(budget.least_kept, device=ranks.device)
    reserved[chunk_of_unit[ranks < least[segment]]] = True
    costs = summed(torch.where(is_whole, budget.costs, 0.0))
    left = budget.limit - torch.where(reserved, costs, 0.0).sum()
    payable = torch.where(reserved, 0.0, costs)  # what is reserved is paid for
    fits = torch.empty_like(reserved)
    fits[order] = payable[order].cumsum(0) <= left
    return (reserved | fits)[chunk_of_unit] & is_whole


def chunked(scores: Tensor, budget: Budget) -> tuple[Tensor, Tensor, Tensor]:
    """`(N,)` ranks and chunks of units, and the `(M,)` chunks from the best mean score on."""
    ranks, segment = rank_in_segment(scores, budget), budget.segment_of_unit
    sizes = torch.tensor(budget.units.segment_sizes, device=ranks.device)
    multiples = torch.tensor(budget.multiples, device=ranks.device)
    counts = (sizes + multiples - 1) // multiples  # (2L,) chunks of each segment
    chunk_of_unit = (counts.cumsum(0) - counts)[segment] + ranks // multiples[segment]
    summed = partial(_summed, chunk_of_unit, int(counts.sum()))
    means = summed(scores) / summed(torch.ones_like(budget.costs))
    tie_places = torch.full((len(means),), len(ranks), device=ranks.device)
    tie_places.scatter_reduce_(0, chunk_of_unit, places_in(budget.tie_order), "amin")
    return ranks, chunk_of_unit, descending(means, tie_places.argsort())


def _summed(chunk_of_unit: Tensor, chunks: int, values: Tensor) -> Tensor:
    """`(M,)` float64 sums over chunks of `(N,)` values."""
    zeros = torch.zeros(chunks, dtype=torch.float64, device=values.device)
    return zeros.index_add_(0, chunk_of_unit, values.double())


def rank_in_segment(probabilities: Tensor, budget: Budget) -> Tensor:
    """`(N,)` int64 rank of each unit in its segment, 0 for the best, as the projection ranks them.

    Units of cost 0 are always kept: they lead the ranking of their segment.
    """
    rank_key = torch.where(budget.costs == 0, torch.inf, probabilities)
    order = descending(rank_key, budget.tie_order)
    order = order[torch.argsort(budget.segment_of_unit[order], stable=True)]
    starts = torch.tensor(budget.units.starts, device=order.device)
    return places_in(order) - starts[budget.segment_of_unit]


def descending(scores: Tensor, tie_order: Tensor) -> Tensor:
    """Indices from the highest score to the lowest, equals in the order given."""
    return tie_order[torch.argsort(scores[tie_order], descending=True, stable=True)]


def places_in(order: Tensor) -> Tensor:
    """`(n,)` place of each index in an order: the inverse of a permutation."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places
