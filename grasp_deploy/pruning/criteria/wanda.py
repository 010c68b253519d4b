"""Weights times input norms (Wanda, Sun et al. 2024), added up over units.

FLAP's authors made it structured as their baseline Wanda-sp (An et al. 2024): the
importance of a column of `down_proj` or `o_proj` is the sum of `|W|·‖x‖₂` over its weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.moments import input_moments
from grasp_deploy.pruning.layout import output_projections
from grasp_deploy.pruning.units import UnitTable


@torch.no_grad()
def wanda_structured_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 importance over a text, divided by the mean of the unit's segment.

    The sums compare only within one linear layer, where Wanda-sp ranks them. Divided by their mean,
    1 is an average unit of its layer and kind everywhere, so a global ranking can use them. With
    the allocation `layerwise` the division changes nothing, and the result is Wanda-sp.
    """
    linears = list(output_projections(model).values())
    moments = input_moments(model, linears, text)
    scores = []
    for size, linear, moment in zip(units.segment_sizes, linears, moments, strict=True):
        columns = linear.weight.float().abs().sum(0, dtype=torch.float64) * moment.norm
        sums = columns.view(size, -1).sum(1)
        left = (sums > 0).sum()  # removed units count in no mean
        scores.append(sums / (sums.sum() / left if left else 1.0))
    return torch.cat(scores)
