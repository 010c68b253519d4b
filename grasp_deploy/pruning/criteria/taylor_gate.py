"""First-order Taylor importance of the gates: the effect of closing one on each sequence's loss.

With open gates, `z = 1`, closing one moves the loss by `-∂L/∂z` to first order. Over a corpus the
signs cancel, so a unit scores with the mean over sequences of `|∂L/∂z|`. Each sequence's loss is
its own mean over tokens. (Molchanov et al. 2019, who gate filters, average the squares instead.)
Only activations pass gradients on: a batch costs as much as a step of learning.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText, device_of
from grasp_deploy.pruning.hooks import on_inputs
from grasp_deploy.pruning.layout import output_projections
from grasp_deploy.pruning.objective import finite, language_loss
from grasp_deploy.pruning.units import UnitTable


def taylor_gate_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 mean `|∂L/∂z|` in nats; LossError if the loss is not finite.

    Each sequence has its own gates, so the batch size does not matter.
    """
    linears = list(output_projections(model).values())
    device = device_of(model)
    totals = [torch.zeros(size, dtype=torch.float64, device=device) for size in units.segment_sizes]
    gates: list[Tensor] = []
    with on_inputs(linears, lambda segment, x: _OpenGate.apply(x, gates[segment])):
        for step, batch in enumerate(text.batches(device)):
            gates[:] = [_open_gates(linear, len(batch)) for linear in linears]
            loss = language_loss(model, batch)
            finite(loss, "taylor-gate", step)
            (loss * len(batch)).backward()  # the sum of the sequences' own mean losses
            for total, gate in zip(totals, gates, strict=True):
                assert gate.grad is not None, "each gate stands in the path to the loss"
                # (B, width) -> (B, units): a KV group's gate stands in G·D columns
                by_unit = gate.grad.double().view(len(batch), len(total), -1).sum(2)
                total += by_unit.abs().sum(0)
    return torch.cat(totals) / len(text.sequences)


def _open_gates(linear: nn.Linear, sequences: int) -> Tensor:
    shape = (sequences, linear.in_features)
    return torch.ones(shape, device=linear.weight.device, requires_grad=True)


class _OpenGate(torch.autograd.Function):
    """`x·z` for `(B, T, width)` inputs and `(B, width)` gates that are all 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return gradient, (gradient * x).sum(1, dtype=torch.float32)
