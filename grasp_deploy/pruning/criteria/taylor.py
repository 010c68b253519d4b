"""First-order Taylor importance from weight gradients (LLM-Pruner, Ma et al. 2023, section 3.2).

Removing a unit sets its weights `w` to zero and moves the loss by `-g·w` to first order. `g` is the
gradient of the mean loss over all calibration sequences. The paper adds `|g·w|` up in two
ways, here without the terms of second order:

    vector-wise    |Σ g·w| of each row and column, then the sum over those of the unit (equation 3)
    element-wise   Σ |g·w| over all weights of the unit (equation 4)

Of the paper's four ways to put the parts of a unit together this is the sum, its source's default.
Biases that go with a row count as one more of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText, device_of
from grasp_deploy.pruning.hooks import installed
from grasp_deploy.pruning.layout import Coupled, coupled_linears, unit_sums
from grasp_deploy.pruning.objective import finite, language_loss
from grasp_deploy.pruning.units import UnitTable

OnGradient = Callable[[int, Tensor], None]


def taylor_vector_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 vector-wise importance in nats; LossError if the loss is not finite.

    Sums of `g·w` over a row or column are linear in `g`, so each batch's gradients are summed and
    dropped at once.
    """
    owners = _parameters_with_owners(model)
    sums = {coupled.linear: _vector_zeros(coupled) for coupled, _ in owners}

    def on_gradient(index: int, gradient: Tensor) -> None:
        coupled, parameter = owners[index]
        sums[coupled.linear] += coupled.vector_sums(parameter, _product(gradient, parameter))

    _differentiate(model, [parameter for _, parameter in owners], on_gradient, text, "vector")
    scores = unit_sums(model, units, lambda coupled: sums[coupled.linear].abs())
    return scores / len(text.sequences)


def taylor_element_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 element-wise importance in nats; LossError if the loss is not finite.

    The absolute value waits for the sum over all batches, so one float32 gradient of each prunable
    weight is held: 4 bytes a parameter.
    """
    parameters = [parameter for _, parameter in _parameters_with_owners(model)]
    totals = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    gradient_of = dict(zip(parameters, totals, strict=True))

    def on_gradient(index: int, gradient: Tensor) -> None:
        totals[index] += gradient

    def vectors_of(coupled: Coupled) -> Tensor:
        sums = _vector_zeros(coupled)
        for parameter in coupled.parameters:
            product = _product(gradient_of[parameter], parameter).abs_()
            sums += coupled.vector_sums(parameter, product)
        return sums

    _differentiate(model, parameters, on_gradient, text, "element")
    return unit_sums(model, units, vectors_of) / len(text.sequences)


def _parameters_with_owners(model: nn.Module) -> list[tuple[Coupled, Tensor]]:
    """All weights and biases that go with units, each with the linear layer that it belongs to."""
    return [
        (coupled, parameter)
        for coupled in coupled_linears(model)
        for parameter in coupled.parameters
    ]


def _differentiate(
    model: nn.Module,
    parameters: Sequence[Tensor],
    on_gradient: OnGradient,
    text: CalibrationText,
    kind: str,
) -> None:
    """Pass `on_gradient` the gradients of each batch's sum of its sequences' mean losses.

    Dividing by the number of sequences is left for the end: small gradients vanish in half
    precision.
    """
    with _gradients_of(parameters, on_gradient):
        for step, batch in enumerate(text.batches(device_of(model))):
            loss = language_loss(model, batch)
            finite(loss, f"taylor-{kind}", step)
            (loss * len(batch)).backward()


@contextmanager
def _gradients_of(parameters: Sequence[Tensor], on_gradient: OnGradient) -> Iterator[None]:
    """Let parameters of a frozen model take gradients, and freeze them again whatever happens.

    `on_gradient(index, gradient)` is called as soon as the backward pass has it; then it is freed.
    """

    def hook(index: int) -> Callable[[Tensor], None]:
        def pass_on(parameter: Tensor) -> None:
            assert parameter.grad is not None, "the hook runs once the gradient exists"
            on_gradient(index, parameter.grad)
            parameter.grad = None

        return pass_on

    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with installed(
            parameter.register_post_accumulate_grad_hook(hook(index))
            for index, parameter in enumerate(parameters)
        ):
            yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
            parameter.grad = None


def _product(gradient: Tensor, parameter: Tensor) -> Tensor:
    """`g·w` in float32, whatever the model's dtype."""
    return gradient.float() * parameter.detach().float()


def _vector_zeros(coupled: Coupled) -> Tensor:
    """`(rows,)` or `(columns,)` float64 zeros, one for each vector of a linear layer."""
    weight = coupled.linear.weight
    size = weight.shape[0 if coupled.by_rows else 1]
    return torch.zeros(size, dtype=torch.float64, device=weight.device)
