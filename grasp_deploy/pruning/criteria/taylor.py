"""First-order Taylor importance from weight gradients (LLM-Pruner, Ma et al. 2023, section 3.2).

Removing a unit sets its weights `w` to zero and moves the loss by `-g·w` to first order, where `g`
is the gradient of the mean loss over all calibration blocks. The paper adds `|g·w|` up in two ways:

    vector-wise    |Σ g·w| of each row and column, then the sum over those of the unit (equation 3)
    element-wise   Σ |g·w| over all weights of the unit (equation 4)

without the terms of second order. Of the paper's four ways to put the parts of a unit together this
is the sum, its source's default. Biases that go with a row count as one more of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch, batches
from grasp_deploy.pruning.criteria.coupled import Coupled, add_up, coupled_linears
from grasp_deploy.pruning.objective import finite, language_loss
from grasp_deploy.pruning.units import UnitTable


def taylor_vector_scores(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
) -> Tensor:
    """`(N,)` float64 vector-wise importance in nats, from `(n, T)` calibration blocks.

    Sums of `g·w` over a row or column are linear in `g`, so each batch's gradients are summed and
    dropped at once. Raises LossError if the loss is no number.
    """
    coupled = list(coupled_linears(model))
    owners = [(one, parameter) for one in coupled for parameter in one.parameters]
    sums = {one.linear: _vector_zeros(one) for one in coupled}

    def take(index: int, gradient: Tensor) -> None:
        one, parameter = owners[index]
        sums[one.linear] += one.vector_sums(parameter, _product(gradient, parameter))

    _differentiate(model, owners, take, blocks, batch_size, on_batch, "taylor-vector")
    return add_up(model, units, lambda one: sums[one.linear].abs()) / len(blocks)


def taylor_element_scores(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
) -> Tensor:
    """`(N,)` float64 element-wise importance in nats, from `(n, T)` calibration blocks.

    The absolute value waits for the sum over all batches, so one float32 gradient of each prunable
    weight is held: 4 bytes a parameter. Raises LossError if the loss is no number.
    """
    owners = [(one, parameter) for one in coupled_linears(model) for parameter in one.parameters]
    totals = [torch.zeros_like(parameter, dtype=torch.float32) for _, parameter in owners]
    gradient_of = dict(zip((parameter for _, parameter in owners), totals, strict=True))

    def take(index: int, gradient: Tensor) -> None:
        totals[index] += gradient

    def vectors_of(one: Coupled) -> Tensor:
        sums = _vector_zeros(one)
        for parameter in one.parameters:
            product = _product(gradient_of[parameter], parameter).abs_()
            sums += one.vector_sums(parameter, product)
        return sums

    _differentiate(model, owners, take, blocks, batch_size, on_batch, "taylor-element")
    return add_up(model, units, vectors_of) / len(blocks)


def _differentiate(
    model: nn.Module,
    owners: Sequence[tuple[Coupled, Tensor]],
    take: Callable[[int, Tensor], None],
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None,
    stage: str,
) -> None:
    """Hand `take` the gradients of each batch's sum of its sequences' mean losses.

    Dividing by the number of blocks is left for the end: small gradients vanish in half precision.
    """
    with _gradients_of([parameter for _, parameter in owners], take):
        for step, batch in enumerate(batches(model, blocks, batch_size, on_batch)):
            loss = language_loss(model, batch)
            finite(loss, stage, step)
            (loss * len(batch)).backward()


@contextmanager
def _gradients_of(
    parameters: Sequence[Tensor], take: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Let parameters of a frozen model take gradients, and freeze them again whatever happens.

    A gradient goes to `take(index, gradient)` as soon as the backward pass has it, and is freed.
    """
    before = [(parameter.requires_grad, parameter.grad) for parameter in parameters]
    handles = []

    def hook(index: int) -> Callable[[Tensor], None]:
        def hand_over(parameter: Tensor) -> None:
            assert parameter.grad is not None, "the hook runs after the gradient is there"
            take(index, parameter.grad)
            parameter.grad = None

        return hand_over

    try:
        for index, parameter in enumerate(parameters):
            parameter.requires_grad_(True)
            parameter.grad = None
            handles.append(parameter.register_post_accumulate_grad_hook(hook(index)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, (requires_grad, gradient) in zip(parameters, before, strict=True):
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient


def _product(gradient: Tensor, parameter: Tensor) -> Tensor:
    """`g·w` in float32, whatever the model's dtype."""
    return gradient.float() * parameter.detach().float()


def _vector_zeros(one: Coupled) -> Tensor:
    """`(rows,)` or `(columns,)` float64 zeros, one for each vector of a linear layer."""
    weight = one.linear.weight
    size = weight.shape[0 if one.by_rows else 1]
    return torch.zeros(size, dtype=torch.float64, device=weight.device)
