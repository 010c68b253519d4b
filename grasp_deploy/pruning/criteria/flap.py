"""Fluctuation-based importance (FLAP, An et al. 2024).

A column of `down_proj` or `o_proj` whose input hardly fluctuates can be replaced by a constant: its
mean input times the column, added to the output as a bias. The replacement loses the input's
variance times the column's squared norm, their metric WIFV. The bias itself is left out: Qwen's
checkpoints have no place for one, and the closed-form compensation does more.
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
