"""Gates: the forward pass of a pruned model on the uncut weights (section 3.2).

A gate multiplies a unit's output: an FFN channel's activation before `down_proj`, or the attention
outputs of a KV group's `G` query heads before `o_proj`. It sits in a forward pre-hook of those two
linear layers, so no attention or MLP forward is rewritten. Experts are gated where their router
chooses among them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.experts import routed
from grasp_deploy.pruning.layout import (
    decoder_layers,
    device_of,
    norms_in,
    on_inputs,
    on_outputs,
    output_projections,
    routers,
)
from grasp_deploy.pruning.units import UnitTable


class Gates:
    """The gate values that the hooks of one model read; assign new ones before a forward pass."""

    def __init__(self, units: UnitTable, widths: Mapping[int, int]) -> None:
        self._units = units
        self._widths = widths  # features that share a gate, by segment; of experts none
        self.of_segment: list[Tensor] = []

    def assign(self, values: Tensor) -> None:
        """Set `(N,)` gate values; their gradient reaches the tensor given."""
        parts = enumerate(values.split(self._units.segment_sizes))
        # (K,) -> (K·G·D,): one value for each input column of o_proj
        self.of_segment = [part.repeat_interleave(self._widths.get(s, 1)) for s, part in parts]

    def multiply(self, segment: int, x: Tensor) -> Tensor:
        """`(B, T, width)` inputs of a linear layer, gated."""
        return _Multiply.apply(x, self.of_segment[segment])


@contextmanager
def gated(model: nn.Module, units: UnitTable, *, all_learn: bool = True) -> Iterator[Gates]:
    """Gate the model in the `with` block, open until assigned; `all_learn` is that of `routed`."""
    projections, choosing = output_projections(model), routers(model)
    sizes = units.segment_sizes
    gates = Gates(units, {s: linear.in_features // sizes[s] for s, linear in projections.items()})
    gates.assign(torch.ones(units.size, device=device_of(model)))

    def route(segment: int, output: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        values = gates.of_segment[segment]
        return routed(choosing[segment], output[0], values, all_learn=all_learn)

    with on_inputs(projections, gates.multiply), on_outputs(choosing, route):
        yield gates


class NormScales:
    """Multipliers of the hidden channels that norms return, which the hooks of one model read."""

    def __init__(self, norms: int) -> None:
        self._norms = norms
        self._of_norm: Tensor | None = None

    def assign(self, values: Tensor) -> None:
        """Set `((2L + 1)·d,)` values, norm after norm; an empty tensor leaves the norms alone."""
        self._of_norm = values.view(self._norms, -1) if len(values) else None

    def multiply(self, norm: int, y: Tensor) -> Tensor | None:
        """`(B, T, d)` outputs of a norm, scaled."""
        return None if self._of_norm is None else _Multiply.apply(y, self._of_norm[norm])


@contextmanager
def scaled_norms(model: nn.Module) -> Iterator[NormScales]:
    """Multiply what the norms of a model return in the `with` block, once multipliers are assigned.

    They fold into the norms' weights, which multiply the same channels.
    """
    names = norms_in(model).in_order(len(decoder_layers(model)))
    norms = [model.get_submodule(name) for name in names]
    scales = NormScales(len(norms))
    with on_outputs(dict(enumerate(norms)), scales.multiply):
        yield scales


def straight_through(probabilities: Tensor, mask: Tensor) -> Tensor:
    """`z = m + (p - stop_gradient(p))`: `(N,)` gates that equal the mask (equation 6).

    The forward pass sees the mask, the backward pass hands the gradient on to `p`.
    """
    return mask.to(probabilities.dtype) + (probabilities - probabilities.detach())


class _Multiply(torch.autograd.Function):
    """`x·z` over the last axis. By hand, so that the sum over tokens runs in the dtype of z."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor) -> Tensor:
        rounded = z.to(x.dtype)
        ctx.save_for_backward(x, rounded)
        ctx.z_dtype = z.dtype
        return x * rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, z = ctx.saved_tensors
        needs_x, needs_z = ctx.needs_input_grad
        if not needs_z:
            return gradient * z if needs_x else None, None
        product = gradient * x
        z_gradient = product.flatten(end_dim=-2).sum(0, dtype=ctx.z_dtype)  # (B·T, width)
        # The product is spent, and its memory is warm: the gradient of x goes there.
        return torch.mul(gradient, z, out=product) if needs_x else None, z_gradient
