"""What removing a unit costs once the others have made up for it: the optimal brain surgeon's loss.

Removing a unit's columns of `down_proj` or `o_proj` leaves that part of its inputs which the other
columns cannot predict. To second order, with inputs and gradients taken to be independent, it costs

    ½ tr(S C)    S   covariance of a unit's inputs, given all other inputs of the linear layer
                 C   second moments of the loss's gradient at these inputs

in nats per token. `S` is the inverse of the unit's block of the inverse of all inputs' second
moments. Hassibi and Stork (1993) for single weights; the Fisher information in two factors, for
whole structures of a language model, as in LLM Surgeon (van der Ouderaa et al. 2024). A KV group is
a block of `G·D` columns, an FFN channel one of a single column.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch, at_inputs, batches
from grasp_deploy.pruning.criteria.coupled import gated_linears
from grasp_deploy.pruning.criteria.leftovers import Leftovers
from grasp_deploy.pruning.objective import finite, language_loss
from grasp_deploy.pruning.units import UnitTable


def obs_scores(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
    left: Leftovers | None = None,
) -> Tensor:
    """`(N,)` float64 losses in nats per token, from `(n, T)` calibration blocks.

    `left` is what is left of the units' inputs on the same blocks, for units of which some are
    removed; where it is not measured yet, it is. None: no unit is removed.
    Raises LossError if the loss is no number, or hidden states are not finite.
    """
    gradients = _gradient_moments(model, units, blocks, batch_size, on_batch)
    left = left or Leftovers(units, torch.ones(units.size, dtype=torch.bool), blocks.numel())
    if not left.complete:
        left.look(model, blocks, batch_size)
    scores = [
        (left.of_segment[segment] * moments).sum((1, 2)) / 2
        for segment, moments in enumerate(gradients)
    ]
    return torch.cat(scores)


def _gradient_moments(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None,
) -> list[Tensor]:
    """`(units, w, w)` mean products over tokens of the gradients at the units' columns, by segment.

    The gradients are those of the summed loss of a token's sequence, in nats.
    """
    linears = gated_linears(model)
    widths = [
        linear.in_features // size
        for linear, size in zip(linears, units.segment_sizes, strict=True)
    ]
    moments = [
        torch.zeros(size, width, width, device=linear.weight.device, dtype=torch.float64)
        for linear, size, width in zip(linears, units.segment_sizes, widths, strict=True)
    ]

    def take(segment: int, gradient: Tensor) -> None:
        moments[segment] += _products(gradient, widths[segment])

    def watch(segment: int, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        x.register_hook(lambda gradient: take(segment, gradient))
        return x

    with at_inputs(linears, watch):
        for step, batch in enumerate(batches(model, blocks, batch_size, on_batch)):
            loss = language_loss(model, batch)
            finite(loss, "obs", step)
            (loss * batch[:, 1:].numel()).backward()
    return [moment / blocks.numel() for moment in moments]


def _products(gradients: Tensor, width: int) -> Tensor:
    """`(units, w, w)` sums over tokens of the products of each unit's columns."""
    rows = gradients.flatten(end_dim=-2).float()
    if width == 1:
        return rows.square().sum(0)[:, None, None]
    by_unit = rows.unflatten(1, (-1, width)).transpose(0, 1)
    return by_unit.transpose(1, 2) @ by_unit
