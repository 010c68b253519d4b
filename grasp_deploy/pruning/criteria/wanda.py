"""Weights times input norms (Wanda, Sun et al. 2024), added up over units.

FLAP's authors made it structured as their baseline Wanda-sp (An et al. 2024): the
importance of a column of `down_proj` or `o_proj` is the sum of `|W|·‖x‖₂` over its weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.coupled import gated_linears
from grasp_deploy.pruning.criteria.moments import input_moments
from grasp_deploy.pruning.units import UnitTable


@torch.no_grad()
def wanda_structured_scores(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
) -> Tensor:
    """`(N,)` float64 importance over `(n, T)` blocks, divided by the mean of the unit's segment.

    The sums mean something only within one linear layer, where Wanda-sp ranks them. Divided by
    their mean, 1 is an average unit of its layer and kind everywhere, which a global ranking can
    read; with the allocation `layerwise` the division changes nothing, and that is Wanda-sp.
    """
    linears = gated_linears(model)
    moments = input_moments(model, linears, blocks, batch_size, on_batch)
    scores = []
    for size, linear, moment in zip(units.segment_sizes, linears, moments, strict=True):
        columns = linear.weight.float().abs().sum(0, dtype=torch.float64) * moment.norm
        sums = columns.view(size, -1).sum(1)
        left = (sums > 0).sum()  # what is removed already counts in no mean
        scores.append(sums / (sums.sum() / left if left else 1.0))
    return torch.cat(scores)
