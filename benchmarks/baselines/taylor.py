"""First-order Taylor importance: of the weights that go with a unit, or of its gate.

Removing a unit sets its weights `w` to zero and moves the loss by `-g·w` to first order. Here `g`
is the gradient of the mean loss over all calibration sequences. LLM-Pruner (Ma et al. 2023, section
3.2) adds `|g·w|` up in two ways, here without the terms of second order:

    vector-wise    |Σ g·w| of each row and column, then the sum over those of the unit (equation 3)
    element-wise   Σ |g·w| over all weights of the unit (equation 4)

Of the paper's four ways to put the parts of a unit together this is the sum, its source's default.
Biases that go with a row count as one more of its weights.

With open gates, `z = 1`, closing one moves the loss by `-∂L/∂z`. Over a corpus the signs cancel, so
a unit scores with the mean over sequences of `|∂L/∂z|`. Each sequence's loss is its own mean over
tokens. (Molchanov et al. 2019, who gate filters, average the squares instead.) Only activations
pass gradients on: a batch costs as much as a step of learning.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.baselines.coupled import Coupled, coupled_linears, unit_sums
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.layout import (
    device_of,
    installed,
    on_inputs,
    output_projections,
)
from grasp_deploy.pruning.units import UnitTable

OnGradient = Callable[[Coupled, Tensor, Tensor], None]  # a parameter and its float32 gradient


def taylor_vector_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 vector-wise importance in nats; LossError if the loss is not finite.

    Sums of `g·w` are linear in `g`: each batch's gradients are summed and dropped at once.
    """
    sums: dict[Coupled, Tensor] = {}

    def on_gradient(coupled: Coupled, parameter: Tensor, gradient: Tensor) -> None:
        vectors = coupled.vector_sums(parameter, gradient * parameter.detach().float())
        sums[coupled] = sums.get(coupled, 0.0) + vectors.double()

    _differentiate(model, on_gradient, text, "taylor-vector")
    scores = unit_sums(model, units, lambda coupled: sums[coupled].abs())
    return scores / len(text.sequences)


def taylor_element_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 element-wise importance in nats; LossError if the loss is not finite.

    The absolute value waits for all batches: one float32 gradient a weight, 4 bytes a parameter.
    """
    gradients: dict[Tensor, Tensor] = {}

    def on_gradient(_coupled: Coupled, parameter: Tensor, gradient: Tensor) -> None:
        gradients[parameter] = gradients.get(parameter, 0.0) + gradient

    def vectors_of(coupled: Coupled) -> Tensor:
        parts = [
            coupled.vector_sums(weight, (gradients[weight] * weight.detach().float()).abs_())
            for weight in coupled.parameters
        ]
        return torch.stack(parts).sum(0, dtype=torch.float64)

    _differentiate(model, on_gradient, text, "taylor-element")
    return unit_sums(model, units, vectors_of) / len(text.sequences)


def taylor_gate_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 mean `|∂L/∂z|` in nats; LossError if the loss is not finite.

    Each sequence has its own gates, so the batch size does not matter.
    """
    totals = torch.zeros(units.size, dtype=torch.float64, device=device_of(model))
    gates: dict[int, Tensor] = {}

    def gate(segment: int, x: Tensor) -> Tensor:
        if segment not in gates:  # else activations are computed a second time
            shape = (len(x), x.shape[-1])
            gates[segment] = torch.ones(shape, device=x.device, requires_grad=True)
        return _OpenGate.apply(x, gates[segment])

    with on_inputs(output_projections(model), gate):
        for batch, loss in text.losses(model, "taylor-gate"):
            (loss * len(batch)).backward()  # the sum of the sequences' own mean losses
            for segment, total in enumerate(totals.split(units.segment_sizes)):
                gradient = gates.pop(segment).grad
                assert gradient is not None, "each gate stands in the path to the loss"
                # (B, width) -> (B, units): a KV group's gate stands in G·D columns
                by_unit = gradient.double().view(len(batch), len(total), -1).sum(2)
                total += by_unit.abs().sum(0)
    return totals / len(text.sequences)


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


def _differentiate(
    model: nn.Module, on_gradient: OnGradient, text: CalibrationText, criterion: str
) -> None:
    """Pass `on_gradient` the gradients of each batch's sum of its sequences' mean losses.

    It is called as soon as the backward pass has a gradient; then that is freed. Dividing by the
    number of sequences waits for the end: small gradients vanish in half precision. The weights
    that go with units take gradients for the while, and are frozen again whatever happens.
    """
    owners = {
        parameter: coupled for coupled in coupled_linears(model) for parameter in coupled.parameters
    }

    def pass_on(parameter: Tensor) -> None:
        assert parameter.grad is not None, "the hook runs once the gradient exists"
        on_gradient(owners[parameter], parameter, parameter.grad.float())
        parameter.grad = None

    try:
        for parameter in owners:
            parameter.requires_grad_(True)
        with installed(p.register_post_accumulate_grad_hook(pass_on) for p in owners):
            for batch, loss in text.losses(model, criterion):
                (loss * len(batch)).backward()
    finally:
        for parameter in owners:
            parameter.requires_grad_(False)
            parameter.grad = None
