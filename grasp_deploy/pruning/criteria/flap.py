"""Fluctuation-based importance and the bias that makes up for it (FLAP, An et al. 2024).

A column of `down_proj` or `o_proj` whose input hardly fluctuates can be replaced by a constant: its
mean input times the column, added to the output as a bias. What the replacement loses is the
input's variance times the column's squared norm, their metric WIFV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.coupled import gated_linears
from grasp_deploy.pruning.criteria.moments import input_moments
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Fluctuation:
    """What one pass over the text tells of every unit."""

    scores: Tensor  # (N,) float64, mean 0 and variance 1 over the columns of each linear layer
    mean_inputs: tuple[Tensor, ...]  # (2L,) float64 mean input of each column, by segment


@torch.no_grad()
def fluctuation(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
) -> Fluctuation:
    """Standardised WIFV and mean inputs over `(n, T)` calibration blocks.

    Columns are standardised within their linear layer, and a KV group has the mean of its `G·D`
    columns, so that all layers and both kinds compare in one ranking (their structure AL-AM). Their
    source squares the metric of `o_proj` first; here both kinds are treated alike. Such
    scores have no zero: dividing them by costs means nothing.
    """
    linears = gated_linears(model)
    moments = input_moments(model, linears, blocks, batch_size, on_batch)
    scores = []
    for size, linear, moment in zip(units.segment_sizes, linears, moments, strict=True):
        column_norms = linear.weight.float().square().sum(0, dtype=torch.float64)
        scores.append(_standardised(moment.variance * column_norms).view(size, -1).mean(1))
    return Fluctuation(torch.cat(scores), tuple(moment.mean for moment in moments))


@torch.no_grad()
def flap_bias_compensation(
    weights: Sequence[Tensor],
    mean_inputs: Sequence[Tensor],
    units: UnitTable,
    group_width: int,
    mask: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """The `(d,)` float32 biases of down_proj and o_proj that stand in for removed units, per layer.

    `weights` are the `(d, width)` weights of both by segment, `mean_inputs` their mean inputs and
    `mask` the `(N,)` units kept: `b = W[:, removed] @ mean_input[removed]`.
    """
    biases = []
    for segment, kept in enumerate(mask.bool().split(units.segment_sizes)):
        removed = ~kept.repeat_interleave(group_width if segment % 2 else 1)
        columns = weights[segment].double()[:, removed.to(weights[segment].device)]
        biases.append((columns @ mean_inputs[segment][removed.to(columns.device)]).float())
    return list(zip(biases[0::2], biases[1::2], strict=True))


def _standardised(values: Tensor) -> Tensor:
    """Values with mean 0 and variance 1; zeros where all are the same."""
    spread = values.std() if len(values) > 1 else torch.zeros_like(values[0])
    return (values - values.mean()) / torch.where(spread > 0, spread, 1.0)
