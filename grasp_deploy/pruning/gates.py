"""Gates: the forward pass of a pruned model on the uncut weights (section 3.2).

A gate multiplies what a unit hands on: an FFN channel's activation before `down_proj`, the
attention outputs of a KV group's `G` query heads before `o_proj`. It sits in a forward pre-hook of
those two linear layers, so no attention or MLP forward is rewritten.

A KV group's gate may stand elsewhere while gates are learnt: at the keys and values that `k_proj`
and `v_proj` hand on, as in the paper's own code. A closed gate leaves the same logits at either
site, since values of 0 give outputs of 0 whatever the keys; the gradient is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.units import UnitTable

GateSite = Literal["outputs", "keys-values"]


class Gates:
    """The gate values that the hooks of one model read; assign new ones before a forward pass."""

    def __init__(self, units: UnitTable, group_width: int) -> None:
        self._units = units
        # Features that share a KV group's gate: G·D attention outputs, or D of a key or value
        self._group_width = group_width
        self._of_segment: list[Tensor] = []

    def assign(self, values: Tensor) -> None:
        """Take `(N,)` gate values; their gradient reaches the tensor given here."""
        self._of_segment = list(values.split(self._units.segment_sizes))
        for segment in range(1, len(self._of_segment), 2):
            # (K,) -> (K·G·D,): one value for each input column of o_proj; (K·D,) of keys, values
            self._of_segment[segment] = self._of_segment[segment].repeat_interleave(
                self._group_width
            )

    def multiply(self, segment: int, x: Tensor) -> Tensor:
        """`(B, T, width)` inputs of a linear layer, or keys or values, gated."""
        return _Multiply.apply(x, self._of_segment[segment])


@contextmanager
def gated(
    model: nn.Module, units: UnitTable, group_width: int, site: GateSite = "outputs"
) -> Iterator[Gates]:
    """Gate the model within the `with` block; all gates are open until values are assigned.

    `group_width` is `G·D`, at either site of the KV groups' gates.
    """
    gates = Gates(units, group_width if site == "outputs" else _head_dim(model, units))
    gates.assign(torch.ones(units.size, device=next(model.parameters()).device))
    handles = []
    try:
        for index, layer in enumerate(decoder_layers(model)):
            ffn, kv, attention = 2 * index, 2 * index + 1, layer.self_attn
            handles.append(layer.mlp.down_proj.register_forward_pre_hook(_on_input(gates, ffn)))
            if site == "outputs":
                handles.append(attention.o_proj.register_forward_pre_hook(_on_input(gates, kv)))
                continue
            for linear in (attention.k_proj, attention.v_proj):
                handles.append(linear.register_forward_hook(_on_output(gates, kv)))
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


def _head_dim(model: nn.Module, units: UnitTable) -> int:
    """`D`, which all layers share."""
    return decoder_layers(model)[0].self_attn.v_proj.out_features // units.kv_groups[0]


def _on_input(gates: Gates, segment: int) -> Any:
    return lambda _module, inputs: (gates.multiply(segment, inputs[0]),)


def _on_output(gates: Gates, segment: int) -> Any:
    return lambda _module, _inputs, output: gates.multiply(segment, output)


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
