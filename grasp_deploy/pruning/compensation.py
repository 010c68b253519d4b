"""Closed-form compensation: what is kept makes up for what was removed, layer by layer.

The kept columns of `o_proj` and `down_proj` are solved for by least squares, so that on the
calibration text the hidden states behind a pruned layer come as close as they can to the dense
model's:

    min over W'   Σ |t - W' y|²  +  |(W' - W_K) Λ^½|²

`y` is what the kept units of the pruned model hand to the linear layer, behind layers that are
compensated already; `t` is the dense model's hidden state behind the addition less the pruned
model's before it, so that errors of earlier layers are made up for too. The ridge pulls towards the
kept columns `W_K` as they are, so the error can only fall:

    W' = (Σ t yᵀ + W_K Λ) (Σ y yᵀ + Λ)⁻¹,   Λ = ridge · max(p, median of p),   p = diag Σ y yᵀ

Each input is pulled by its own power: one that is thousands of times as large as the others, as
real models have, does not hold them still. But no input by less than the median's: what the text
hardly excites, and another text may, stays what it was.

OSSCAR, SlimGPT and Olica reconstruct in this way; the paper leaves it out as orthogonal. The sums
are streamed in float64, so nothing grows with the text but five hidden states for each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.gates import decoder_layers, gated
from grasp_deploy.pruning.layerwise import attend, embedded, feed_forward, layer_calls
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.units import UnitTable

RIDGE = 0.01  # of the power of an input


@dataclass(frozen=True)
class Fit:
    """How far one linear layer's outputs miss what is wanted of them, over all tokens.

    Sums of squares before and after its weights were solved for; `power` is that of the targets.
    """

    layer: int
    linear: str  # "self_attn.o_proj" or "mlp.down_proj"
    before: float
    after: float
    power: float


class NormalEquations:
    """`Σ t yᵀ`, `Σ y yᵀ` and `Σ |t|²` over all tokens, for targets `t` and inputs `y`."""

    def __init__(self, outputs: int, inputs: int, device: torch.device | str = "cpu") -> None:
        self.cross = torch.zeros(outputs, inputs, dtype=torch.float64, device=device)
        self.gram = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.power = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, targets: Tensor, inputs: Tensor) -> None:
        """Take in `(..., outputs)` targets and the `(..., inputs)` inputs that should give them."""
        # In float64 from the start: a few inputs are thousands of times larger than the rest, and
        # float32 products of those would drown what the ridge adds.
        t, y = targets.flatten(0, -2).double(), inputs.flatten(0, -2).double()
        self.cross.addmm_(t.T, y)
        self.gram.addmm_(y.T, y)
        self.power += t.square().sum()

    def solve(self, weight: Tensor, ridge: float) -> Tensor:
        """`(outputs, inputs)` float64 weights of least error, pulled towards `weight`.

        Raises LossError if inputs or targets are not finite.
        """
        power = self.gram.diagonal()
        if not bool(power.isfinite().all()):
            raise LossError(f"the hidden states are not finite: {OVERFLOW}")
        if not bool(power.any()):
            return weight.double()
        strength = ridge * power.clamp(min=float(power.median())) + 1e-12 * power.mean()
        regular = self.gram.clone()
        regular.diagonal().add_(strength)
        target = self.cross + strength * weight.double()
        return torch.cholesky_solve(target.T, torch.linalg.cholesky(regular)).T

    def error(self, weight: Tensor) -> float:
        """`Σ |t - W y|²` of `(outputs, inputs)` weights."""
        weight = weight.double()
        error = self.power + (weight * (weight @ self.gram - 2 * self.cross)).sum()
        return max(0.0, float(error))  # the difference of large sums may miss 0 by a little


def compensate(
    model: nn.Module,
    units: UnitTable,
    group_width: int,
    mask: Tensor,
    blocks: Tensor,
    *,
    batch_size: int,
    ridge: float = RIDGE,
) -> Iterator[Fit]:
    """Solve the kept columns of every `o_proj` and `down_proj` of a frozen model, in place.

    `mask` is `(N,)`, `blocks` are `(n, T)` calibration ids. Layers are fitted in order, each behind
    those that are fitted already; a fit is yielded as soon as its weights are in the model. Columns
    of removed units stay as they are: the gates, or the cut, take them out.
    """
    device = next(model.parameters()).device
    kept = mask.to(device).float()
    batches = [batch.to(device) for batch in blocks.split(batch_size)]
    with torch.no_grad(), gated(model, units, group_width) as gates:
        layers = zip(decoder_layers(model), layer_calls(model, batches), strict=True)
        dense = embedded(model, batches)
        pruned = list(dense)
        for index, (layer, calls) in enumerate(layers):
            gates.assign(torch.ones_like(kept))
            middles = [x + attend(layer, x, call)[0] for x, call in zip(dense, calls, strict=True)]
            dense = [middle + feed_forward(layer, middle)[0] for middle in middles]
            gates.assign(kept)

            linear, columns = layer.self_attn.o_proj, _columns(kept[units.kv(index)], group_width)
            sums = NormalEquations(linear.out_features, len(columns), device)
            attended = [attend(layer, x, call)[1] for x, call in zip(pruned, calls, strict=True)]
            for start, inputs, goal in zip(pruned, attended, middles, strict=True):
                sums.add(_wanted(goal, start, linear), inputs[..., columns])
            yield Fit(index, "self_attn.o_proj", *_replace(linear, columns, sums, ridge))

            middles = [x + linear(inputs) for x, inputs in zip(pruned, attended, strict=True)]
            del attended
            linear, columns = layer.mlp.down_proj, _columns(kept[units.ffn(index)], 1)
            sums = NormalEquations(linear.out_features, len(columns), device)
            for middle, goal in zip(middles, dense, strict=True):
                _, inputs = feed_forward(layer, middle)
                sums.add(_wanted(goal, middle, linear), inputs[..., columns])
            yield Fit(index, "mlp.down_proj", *_replace(linear, columns, sums, ridge))

            pruned = [middle + feed_forward(layer, middle)[0] for middle in middles]


class OutputLayers:
    """The linear layers behind the gates, `down_proj` and `o_proj` of each layer, by weight name.

    Remembers the dense model's weights, on the CPU, so that they can be solved for more than once;
    with `remember` off it does not, and nothing can be put back. In the order of the flat axis.
    """

    def __init__(
        self, model: nn.Module, units: UnitTable, group_width: int, *, remember: bool = True
    ) -> None:
        self._units, self._group_width = units, group_width
        self.linears: dict[str, nn.Linear] = {}
        for index, layer in enumerate(decoder_layers(model)):
            stem = f"model.layers.{index}"
            self.linears[f"{stem}.mlp.down_proj.weight"] = layer.mlp.down_proj
            self.linears[f"{stem}.self_attn.o_proj.weight"] = layer.self_attn.o_proj
        self._dense = {
            name: linear.weight.detach().to("cpu", copy=True)
            for name, linear in self.linears.items()
            if remember
        }

    def columns(self, mask: Tensor) -> dict[str, Tensor]:
        """Indices of the input columns that a `(N,)` mask keeps, by the weight's name."""
        segments = mask.split(self._units.segment_sizes)
        widths = (1, self._group_width) * self._units.layers
        return {
            name: _columns(kept, width)
            for name, kept, width in zip(self.linears, segments, widths, strict=True)
        }

    def kept(self, mask: Tensor) -> dict[str, Tensor]:
        """Copies of the kept columns as they now are, on the CPU, by the weight's name."""
        columns = self.columns(mask)
        return {
            name: linear.weight[:, columns[name]].cpu() for name, linear in self.linears.items()
        }

    @torch.no_grad()
    def put(self, mask: Tensor, kept: dict[str, Tensor]) -> None:
        """Put columns that `kept` gave for a mask back into the model."""
        columns = self.columns(mask)
        for name, linear in self.linears.items():
            linear.weight[:, columns[name]] = kept[name].to(linear.weight)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the dense model's weights back."""
        for name, linear in self.linears.items():
            linear.weight.copy_(self._dense[name])


def _columns(kept: Tensor, width: int) -> Tensor:
    """Indices of the input columns of a linear layer that the kept ones of its units hold."""
    return kept.repeat_interleave(width).nonzero().flatten()


def _wanted(goal: Tensor, start: Tensor, linear: nn.Linear) -> Tensor:
    """`(B, T, d)` products of the weight and its inputs that lead from one hidden state to another.

    In float32: rounded to the model's dtype, small differences of large states would be lost.
    """
    wanted = goal.float() - start.float()
    return wanted if linear.bias is None else wanted - linear.bias


def _replace(
    linear: nn.Linear, columns: Tensor, sums: NormalEquations, ridge: float
) -> tuple[float, float, float]:
    """Put the solved columns into the weight; errors before and after, and the targets' power.

    Rounded to the model's dtype, a solution that gains next to nothing may lose: then all stays.
    """
    before_columns = linear.weight[:, columns]
    solved = sums.solve(before_columns, ridge).to(linear.weight.dtype)
    before, after = sums.error(before_columns), sums.error(solved)
    if after < before:
        linear.weight[:, columns] = solved
    return before, min(before, after), float(sums.power)
