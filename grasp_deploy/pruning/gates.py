"""Gates: the forward pass of a pruned model on the uncut weights (section 3.2).

A gate multiplies what a unit hands on: an FFN channel's activation before `down_proj`, the
attention outputs of a KV group's `G` query heads before `o_proj`. It sits in a forward pre-hook of
those two linear layers, so no attention or MLP forward is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.units import UnitTable


class Gates:
    """The gate values that the hooks of one model read; assign new ones before a forward pass."""

    def __init__(self, units: UnitTable, group_width: int) -> None:
        self._units = units
        self._group_width = group_width  # G·D: attention outputs that share a KV group's gate
        self._of_segment: list[Tensor] = []

    def assign(self, values: Tensor) -> None:
        """Take `(N,)` gate values; their gradient reaches the tensor given here."""
        self._of_segment = list(values.split(self._units.segment_sizes))
        for segment in range(1, len(self._of_segment), 2):
            # (K,) -> (K·G·D,): one value for each input column of o_proj
            self._of_segment[segment] = self._of_segment[segment].repeat_interleave(
                self._group_width
            )

    def multiply(self, segment: int, x: Tensor) -> Tensor:
        """`(B, T, width)` inputs of a linear layer, gated."""
        return _Multiply.apply(x, self._of_segment[segment])


@contextmanager
def gated(model: nn.Module, units: UnitTable, group_width: int) -> Iterator[Gates]:
    """Gate the model within the `with` block; all gates are open until values are assigned."""
    gates = Gates(units, group_width)
    gates.assign(torch.ones(units.size, device=next(model.parameters()).device))
    handles = []
    try:
        for index, layer in enumerate(decoder_layers(model)):
            linears = (layer.mlp.down_proj, layer.self_attn.o_proj)
            for segment, linear in enumerate(linears, start=2 * index):
                handles.append(linear.register_forward_pre_hook(_hook(gates, segment)))
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def decoder_layers(model: nn.Module) -> Any:
    """The decoder layers of a causal language model of any supported family."""
    return model.model.layers  # type: ignore[union-attr]


def straight_through(probabilities: Tensor, mask: Tensor) -> Tensor:
    """`z = m + (p - stop_gradient(p))`: `(N,)` gates that equal the mask (equation 6).

    The forward pass sees the mask, the backward pass hands the gradient on to `p`.
    """
    return _StraightThrough.apply(probabilities, mask)


def _hook(gates: Gates, segment: int) -> Any:
    return lambda _module, inputs: (gates.multiply(segment, inputs[0]),)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, mask: Tensor) -> Tensor:
        return mask.to(probabilities.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


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
        x_wanted, z_wanted = ctx.needs_input_grad
        if not z_wanted:
            return gradient * z if x_wanted else None, None
        product = gradient * x
        z_gradient = product.flatten(end_dim=-2).sum(0, dtype=ctx.z_dtype)  # (B·T, width)
        # The product is spent, and its memory is warm: the gradient of x goes there.
        return torch.mul(gradient, z, out=product) if x_wanted else None, z_gradient
