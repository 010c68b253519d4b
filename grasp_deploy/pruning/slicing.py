"""Cutting removed units out of weights and folding scales in: tensors to tensors (section 3.5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class LayerCut:
    """What one layer keeps: indices into its dense weights, and the scales to fold."""

    channels: Tensor  # (F',) int64 kept FFN channels
    channel_scales: Tensor  # (F',) float32
    query_rows: Tensor  # (K'·G·D,) int64 kept rows of q_proj, columns of o_proj
    query_scales: Tensor  # (K'·G·D,) float32
    kv_rows: Tensor  # (K'·D,) int64 kept rows of k_proj and v_proj


def layer_cut(
    units: UnitTable, layer: int, mask: Tensor, scales: Tensor, group_size: int, head_dim: int
) -> LayerCut:
    """The cut of one layer under `(N,)` mask and scales; `G` query heads of `D` to a KV group."""
    channels = mask[units.ffn(layer)].nonzero().flatten()
    groups = mask[units.kv(layer)].nonzero().flatten()
    group_scales = scales[units.kv(layer)][groups]
    width = group_size * head_dim
    return LayerCut(
        channels=channels,
        channel_scales=scales[units.ffn(layer)][channels],
        query_rows=_rows(groups, width),
        query_scales=group_scales.repeat_interleave(width),
        kv_rows=_rows(groups, head_dim),
    )


def cut_tensor(name: str, tensor: Tensor, cut: LayerCut) -> Tensor:
    """One tensor of a layer after the cut, by its name within the layer.

    The scales go into the columns of `down_proj` and `o_proj`, the linear layers that the gates
    stand before, so biases and q/k norms stay as they are. Folding multiplies in float32 and rounds
    once to the tensor's dtype. Norms and the biases of the two output layers pass through.
    """
    match name:
        case "mlp.down_proj.weight":
            return _fold(tensor[:, cut.channels], cut.channel_scales)
        case "self_attn.o_proj.weight":
            return _fold(tensor[:, cut.query_rows], cut.query_scales)
    rows = _kept_rows(name, cut)
    return tensor if rows is None else tensor[rows]


def spread_tensor(name: str, tensor: Tensor, dense: Tensor, cut: LayerCut) -> Tensor:
    """A copy of a dense tensor of a layer with a cut one put where it was cut from, as it is."""
    spread = dense.clone()
    match name:
        case "mlp.down_proj.weight":
            spread[:, cut.channels] = tensor.to(dense)
            return spread
        case "self_attn.o_proj.weight":
            spread[:, cut.query_rows] = tensor.to(dense)
            return spread
    rows = _kept_rows(name, cut)
    spread[slice(None) if rows is None else rows] = tensor.to(dense)
    return spread


def _kept_rows(name: str, cut: LayerCut) -> Tensor | None:
    """Rows that the cut keeps of a tensor whose columns stay; None: all."""
    match name.rpartition(".")[0]:
        case "mlp.gate_proj" | "mlp.up_proj":
            return cut.channels
        case "self_attn.q_proj":
            return cut.query_rows
        case "self_attn.k_proj" | "self_attn.v_proj":
            return cut.kv_rows
    return None


def _rows(groups: Tensor, width: int) -> Tensor:
    """Rows of whole groups, `width` rows each, in order."""
    return (groups[:, None] * width + torch.arange(width)).flatten()


def _fold(weight: Tensor, scales: Tensor) -> Tensor:
    return (weight.float() * scales).to(weight.dtype)
