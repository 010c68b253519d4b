"""Cutting removed units out of weights and folding scales in: tensors to tensors (section 3.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

from grasp_deploy.pruning.layout import (
    PRUNABLE_LINEARS,
    ROUTER,
    Features,
    PrunableLinear,
    features_of,
)
from grasp_deploy.pruning.units import UnitTable

_ROWS = 64  # so few that they stay in the processor's cache: six times as fast as all at once
# The tensors of a layer that lose rows or columns; biases go with rows.
_LINEARS = {
    f"{linear.name}.{parameter}": linear
    for linear in PRUNABLE_LINEARS
    for parameter in (("weight", "bias") if linear.by_rows else ("weight",))
} | {f"{ROUTER}.weight": PrunableLinear(ROUTER, "channels", True)}
_EXPERT = re.compile(r"(mlp\.experts\.)(\d+)(\..*)")


@dataclass(frozen=True)
class LayerCut:
    """Indices that one layer keeps of its dense weights, and the scales to fold."""

    kept: dict[Features, Tensor]  # (F',), (K'·G·D,), (K'·D,) int64 rows, columns or experts
    scales: dict[Features, Tensor]  # (F',), (K'·G·D,) float32, of channels and queries


def layer_cut(
    units: UnitTable, layer: int, mask: Tensor, scales: Tensor, group_size: int, head_dim: int
) -> LayerCut:
    """The cut of one layer under `(N,)` mask and scales; `G` query heads of `D` to a KV group."""
    channels = mask[units.ffn(layer)].nonzero().flatten()
    groups = mask[units.kv(layer)].nonzero().flatten()
    width = group_size * head_dim
    return LayerCut(
        kept={
            "channels": channels,
            "queries": features_of(groups, width),
            "keys-values": features_of(groups, head_dim),
        },
        scales={
            "channels": scales[units.ffn(layer)][channels],
            "queries": scales[units.kv(layer)][groups].repeat_interleave(width),
        },
    )


def cut_tensor(name: str, tensor: Tensor, cut: LayerCut) -> Tensor:
    """One tensor of a layer after the cut, by its name within the layer.

    The scales go into the columns of `down_proj` and `o_proj`, which the gates stand before. So
    biases and q/k norms stay as they are. Folding multiplies in float32 and rounds once to the
    tensor's dtype. Norms and the biases of the output projections pass through.
    """
    linear = _LINEARS.get(name)
    if linear is None:
        return tensor
    kept = cut.kept[linear.features]
    if linear.by_rows:
        return tensor.index_select(0, kept)
    scales = cut.scales[linear.features]
    columns = tensor.new_empty(len(tensor), len(kept))
    for rows, target in zip(tensor.split(_ROWS), columns.split(_ROWS), strict=True):
        target.copy_(rows.float().index_select(1, kept) * scales)
    return columns


def cut_expert(name: str, tensor: Tensor, cut: LayerCut) -> tuple[str, Tensor] | None:
    """A tensor of one expert by its name in the cut layer, its scale in `down_proj`; None if gone.

    Other tensors pass through.
    """
    if not (found := _EXPERT.fullmatch(name)):
        return name, tensor
    place = (cut.kept["channels"] == int(found[2])).nonzero().flatten()
    if not len(place):
        return None
    if found[3].startswith(".down_proj"):
        tensor = (tensor.float() * cut.scales["channels"][place]).to(tensor.dtype)
    return f"{found[1]}{int(place)}{found[3]}", tensor


def spread_tensor(name: str, tensor: Tensor, dense: Tensor, cut: LayerCut) -> Tensor:
    """A copy of a dense tensor of a layer, with a cut tensor written to the places it came from."""
    linear, spread = _LINEARS.get(name), dense.clone()
    if linear is None:
        return spread.copy_(tensor)
    kept = cut.kept[linear.features]
    spread[kept if linear.by_rows else (slice(None), kept)] = tensor.to(dense)
    return spread
