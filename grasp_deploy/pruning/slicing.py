"""Cutting removed units out of weights and folding scales in: tensors to tensors (section 3.5)."""

import re
from typing import NamedTuple

from torch import Tensor

from grasp_deploy.pruning.layout import PRUNABLE_LINEARS, ROUTER, PrunableLinear, Units, kept_places
from grasp_deploy.pruning.units import UnitTable

_ROWS = 64  # so few that they stay in the processor's cache: six times as fast as all at once
# The tensors of a layer that lose rows or columns; biases go with rows.
_LINEARS = {
    f"{linear.name}.{parameter}": linear
    for linear in PRUNABLE_LINEARS
    for parameter in (("weight", "bias") if linear.by_rows else ("weight",))
} | {f"{ROUTER}.weight": PrunableLinear(ROUTER, "channels", True)}
_EXPERT = re.compile(r"(mlp\.experts\.)(\d+)(\..*)")


class LayerCut(NamedTuple):
    """The mask of one layer's units, and the scales to fold."""

    mask: dict[Units, Tensor]  # (F,), (K,) bool
    scales: dict[Units, Tensor]  # (F,), (K,) float32


def layer_cut(units: UnitTable, layer: int, mask: Tensor, scales: Tensor) -> LayerCut:
    """The cut of one layer under `(N,)` mask and scales."""
    places: dict[Units, slice] = {"channels": units.ffn(layer), "groups": units.kv(layer)}
    return LayerCut(*({of: x[at] for of, at in places.items()} for x in (mask, scales)))


def cut_tensor(name: str, tensor: Tensor, cut: LayerCut) -> Tensor:
    """One tensor of a layer after the cut, by its name within the layer.

    The scales go into the columns of `down_proj` and `o_proj`, which the gates stand before. So
    biases and q/k norms stay as they are. Folding multiplies in float32 and rounds once to the
    tensor's dtype. Norms and the biases of the output projections pass through.
    """
    linear = _LINEARS.get(name)
    if linear is None:
        return tensor
    kept = kept_places(cut.mask[linear.units], tensor.shape[not linear.by_rows])
    if linear.by_rows:
        return tensor.index_select(0, kept)
    scales = cut.scales[linear.units][cut.mask[linear.units]]
    scales = scales.repeat_interleave(len(kept) // len(scales))
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
    mask, expert = cut.mask["channels"], int(found[2])
    if not mask[expert]:
        return None
    if found[3].startswith(".down_proj"):
        tensor = (tensor.float() * cut.scales["channels"][expert]).to(tensor.dtype)
    return f"{found[1]}{int(mask[:expert].sum())}{found[3]}", tensor


def spread_tensor(name: str, tensor: Tensor, dense: Tensor, cut: LayerCut) -> Tensor:
    """A copy of a dense tensor of a layer, with a cut tensor written to the places it came from."""
    linear, spread = _LINEARS[name], dense.clone()
    kept = kept_places(cut.mask[linear.units], dense.shape[not linear.by_rows])
    spread[kept if linear.by_rows else (slice(None), kept)] = tensor.to(dense)
    return spread
