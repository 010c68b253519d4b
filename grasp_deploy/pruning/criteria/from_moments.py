"""Scores from the moments of the inputs of `down_proj` and `o_proj`: FLAP and structured Wanda.

FLAP (An et al. 2024): a column whose input hardly fluctuates can be replaced by a constant, its
mean input times the column, added to the output as a bias. The replacement loses the input's
variance times the column's squared norm, their metric WIFV. The bias itself is left out: Qwen's
checkpoints have no place for one, and the closed-form compensation does more.

Wanda-sp, a baseline of the same paper, makes Wanda (Sun et al. 2024) structured: the importance of
a column is the sum of `|W|·‖x‖₂` over its weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.moments import input_moments
from grasp_deploy.pruning.layout import output_projections
from grasp_deploy.pruning.units import UnitTable


@torch.no_grad()
def flap_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 standardised WIFV.

    Columns are standardised among those left in their linear layer, and a KV group has the mean of
    its `G·D` columns. So all layers and both kinds compare in one ranking (their structure AL-AM).
    Their source squares the metric of `o_proj` first; here both kinds are treated alike. Such
    scores have no zero: dividing them by costs means nothing.
    """
    linears = list(output_projections(model).values())
    moments = input_moments(model, linears, text)
    scores = []
    for size, linear, moment in zip(units.segment_sizes, linears, moments, strict=True):
        column_norms = linear.weight.float().square().sum(0, dtype=torch.float64)
        scores.append(_standardised(moment.variance * column_norms).view(size, -1).mean(1))
    return torch.cat(scores)


def _standardised(values: Tensor) -> Tensor:
    """Values of mean 0 and variance 1 over those that are not 0, as removed ones are.

    Zeros where all values are the same.
    """
    left = values[values > 0]
    if len(left) < 2:
        return torch.zeros_like(values)
    spread = left.std()
    return (values - left.mean()) / torch.where(spread > 0, spread, 1.0)


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
