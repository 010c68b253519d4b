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
from benchmarks.baselines.moments import outlier_ratios
from benchmarks.baselines.one_shot import Method, eighth
from benchmarks.baselines.reap import reap
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.projection import rank_in_segment

OWL_SPREAD = 0.08  # lambda: how far a layer's keep ratio may lie from the mean


def layerwise(method: Method) -> Method:
    """A method in which every layer keeps the same share of its FFN channels and KV groups."""

    def shared(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
        scores = method(model, budget, text)
        return by_share(scores, budget, torch.zeros(budget.units.layers))

    return shared


def owl(method: Method) -> Method:
    """A method in which a layer with more outliers keeps more of both (Yin et al. 2024)."""

    def shared(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
        scores = method(model, budget, text)
        offsets = owl_offsets(outlier_ratios(model, eighth(text)))
        return by_share(scores, budget, offsets)

    return shared


magnitude_layerwise, magnitude_owl = layerwise(one_shot.magnitude), owl(one_shot.magnitude)
taylor_element_layerwise = layerwise(one_shot.taylor_element)
taylor_element_owl = owl(one_shot.taylor_element)
obs_layerwise = layerwise(one_shot.obs)
flap_layerwise, flap_owl = layerwise(one_shot.flap), owl(one_shot.flap)
wanda_structured_layerwise = layerwise(one_shot.wanda_structured)
wanda_structured_owl = owl(one_shot.wanda_structured)
reap_uniform = layerwise(reap)


def owl_offsets(outlier_ratios: Tensor, spread: float = OWL_SPREAD) -> Tensor:
    """`(L,)` float64 keep ratios less their mean, `2·spread` from the lowest to the highest.

    Linear in the outlier ratio, as in OWL's source; zeros where all ratios are the same.
    """
    ratios = outlier_ratios.double()
    lowest, highest = ratios.min(), ratios.max()
    shares = (ratios - lowest) / torch.where(highest > lowest, highest - lowest, 1.0)
    return 2 * spread * (shares - shares.mean())


def by_share(scores: Tensor, budget: Budget, offsets: Tensor) -> Tensor:
    """`(N,)` float64 scores with which each layer keeps a common share plus its `(L,)` offset.

    The common share is the one that spends the budget, where no layer keeps less than the
    projection's floor or more than it has.
    """
    ranks = rank_in_segment(scores, budget).cpu()
    multiples = torch.tensor(budget.multiples, dtype=torch.float64)
    quotas = _quotas(ranks, budget, offsets.double().cpu().repeat_interleave(2), multiples)
    segment = budget.units.segment_of_unit
    multiples = multiples[segment]
    # Their mean over a chunk: the chunks of the quota that are left once that chunk is kept.
    shares = (quotas[segment] - (ranks + 1) - (multiples - 1) / 2) / multiples
    return shares.to(scores.device)


def _quotas(ranks: Tensor, budget: Budget, offsets: Tensor, multiples: Tensor) -> Tensor:
    """`(2L,)` float64 units for each segment to keep: fractions, together worth the budget."""
    sizes = torch.tensor(budget.units.segment_sizes, dtype=torch.float64)
    least = torch.tensor(budget.least_kept, dtype=torch.float64)
    most = sizes // multiples * multiples
    prices = _price_lists(ranks, budget)

    def quotas(share: float) -> Tensor:
        return ((share + offsets) * sizes).clamp(least, most)

    def fits(share: float) -> bool:
        parts = zip(quotas(share).tolist(), prices, strict=True)
        cost = sum(numpy.interp(kept, numpy.arange(len(price)), price) for kept, price in parts)
        return bool(cost <= budget.limit)

    low, high = -1.0 - float(offsets.max()), 2.0 - float(offsets.min())
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
