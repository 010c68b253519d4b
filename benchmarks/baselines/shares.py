"""Sharing one budget out over layers: scores whose global ranking keeps chosen shares.

`project` knows one ranking and one budget. To make it keep about `x` units of a segment, the unit
of rank `r` there (1 for the best) gets the score

    x - r        the units of its segment's quota that are left once it is kept

Take the global ranking by these scores. Down to 0 it holds `floor(x)` units of every segment. They
fit, since the quotas are chosen to cost no more than the budget. From 0 down to -1 it holds one
more unit of every segment, the largest remainder first. Not all of these fit: together they cost
more than rounding down has saved. So the prefix that fits ends there, and every segment keeps its
quota give or take a unit. Where a layer keeps multiples, the same holds of chunks.
"""

import numpy
import torch
from torch import Tensor, nn

from benchmarks.baselines import one_shot
from benchmarks.baselines.one_shot import Method
from benchmarks.baselines.reap import reap
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.projection import rank_in_segment


def layerwise(method: Method) -> Method:
    """A method in which every layer keeps the same share of its FFN units and KV groups."""

    def shared(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
        return by_share(method(model, budget, text), budget)

    return shared


obs_layerwise = layerwise(one_shot.obs)
taylor_element_layerwise = layerwise(one_shot.taylor_element)
reap_uniform = layerwise(reap)


def by_share(scores: Tensor, budget: Budget) -> Tensor:
    """`(N,)` float64 scores with which each layer keeps the same share.

    The share is the one that spends the budget, where no layer keeps less than the projection's
    floor or more than it has.
    """
    ranks = rank_in_segment(scores, budget).cpu()
    multiples = torch.tensor(budget.multiples, dtype=torch.float64)
    quotas = _quotas(ranks, budget, multiples)
    segment = budget.units.segment_of_unit
    multiples = multiples[segment]
    # Their mean over a chunk: the chunks of the quota that are left once that chunk is kept.
    shares = (quotas[segment] - (ranks + 1) - (multiples - 1) / 2) / multiples
    return shares.to(scores.device)


def _quotas(ranks: Tensor, budget: Budget, multiples: Tensor) -> Tensor:
    """`(2L,)` float64 units for each segment to keep: fractions, together worth the budget."""
    sizes = torch.tensor(budget.units.segment_sizes, dtype=torch.float64)
    least = torch.tensor(budget.least_kept, dtype=torch.float64)
    most = sizes // multiples * multiples
    prices = _price_lists(ranks, budget)

    def quotas(share: float) -> Tensor:
        return (share * sizes).clamp(least, most)

    def fits(share: float) -> bool:
        parts = zip(quotas(share).tolist(), prices, strict=True)
        cost = sum(numpy.interp(kept, numpy.arange(len(price)), price) for kept, price in parts)
        return bool(cost <= budget.limit)

    low, high = 0.0, 1.0
    if fits(high):
        return quotas(high)
    for _ in range(60):  # halves the interval to less than a unit's share of anything
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return quotas(low)


def _price_lists(ranks: Tensor, budget: Budget) -> list[numpy.ndarray]:
    """For each segment the summed cost of its best 0, 1, 2, ... units."""
    sizes = budget.units.segment_sizes
    parts = zip(ranks.split(sizes), budget.costs.cpu().split(sizes), strict=True)
    return [numpy.cumsum([0.0, *costs[rank.argsort()].tolist()]) for rank, costs in parts]
