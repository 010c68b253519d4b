"""Closed-form compensation: kept units make up for removed ones, layer by layer.

The kept columns of `o_proj` and `down_proj` are solved for by least squares. On the calibration
text the hidden states behind a pruned layer then come as close as they can to the dense model's:

    min over W'   Σ |t - W' y|²  +  |(W' - W_K) Λ^½|²,   Λ = ridge · k · max(p, median of p)

- `y` is the linear layer's input from the kept units of the pruned model. Earlier layers are
  compensated already.
- `t` is the dense model's hidden state behind the addition, less the pruned model's before it, over
  the residual multiplier. So the errors of earlier layers are made up for too. Where a norm stands
  behind the layer, which no linear layer can undo, `t` is what the layer itself gives in the dense
  model.
- `p` is the mean power of each of the `k` inputs. The ridge pulls towards the kept columns `W_K` as
  they are, so the error can only fall.

The kept columns count like `ridge · k` tokens of text. So the pull fades as text grows, and is
stronger where a layer has more to fit. Each input is pulled by its own power: an input thousands of
times as large as the others, as real models have, does not hold them still. The median bounds the
pull from below: an input that this text hardly excites, and another text may, keeps its weights.

OSSCAR, SlimGPT and Olica reconstruct in this way; the paper leaves it out as orthogonal. Nothing
grows with the text but two hidden states for each token, or three with norms behind.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.layerwise import advance, embedded, half_layers, residual_multiplier
from grasp_deploy.pruning.layout import (
    OUTPUT_PROJECTIONS,
    device_of,
    half_of,
    kept_places,
    norms_in,
    output_projections,
)
from grasp_deploy.pruning.least_squares import NormalEquations
from grasp_deploy.pruning.team import ALONE, Team
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Fit:
    """Sums of squared errors of one linear layer's outputs over all tokens."""

    layer: int
    linear: str  # "self_attn.o_proj" or "mlp.down_proj"
    before: float  # with the weights as they were
    after: float  # with the weights solved for


def compensate(
    model: nn.Module,
    units: UnitTable,
    mask: Tensor,
    sequences: Tensor,
    *,
    batch_size: int,
    ridge: float,
    team: Team = ALONE,
) -> Iterator[Fit]:
    """Solve the kept columns of every `o_proj` and `down_proj` of a frozen model, in place.

    `mask` is `(N,)`, `sequences` are `(n, T)` calibration ids, `ridge` is the pull towards the
    weights as they are, in tokens for each input. Layers are fitted in order, each after
    those before it. A fit is yielded as soon as its weights are in the model. Columns of removed
    units stay as they are: the gates, or the cut, remove them. Raises LossError if hidden states
    are not finite.
    """
    device = device_of(model)
    gate_values = mask.to(device).float()
    kept = gate_values.split(units.segment_sizes)
    linears, factor = output_projections(model), residual_multiplier(model)
    weights = {segment: team.part(linear.weight) for segment, linear in linears.items()}
    batches = list(team.deal(sequences)[0].to(device).split(batch_size))
    with torch.no_grad(), gated(model, units) as gates:
        dense = embedded(model, batches, team)
        pruned = list(dense)
        for segment, halves in half_layers(model, batches, team):
            gates.assign(torch.ones_like(gate_values))
            outputs: list[Tensor] = []
            advance(dense, halves, outputs if norms_in(model).behind else None)
            gates.assign(gate_values)
            if segment not in linears:  # experts and linear attention stay as they are
                advance(pruned, halves)
                continue
            weight = weights[segment]
            columns = kept_places(kept[segment], linears[segment].in_features)
            inputs = (half(x).inputs for x, half in zip(pruned, halves, strict=True))
            starts = [x.new_zeros(()) for x in outputs] or pruned
            parts = zip(starts, inputs, outputs or dense, strict=True)
            errors = _refit(linears[segment], weight, columns, parts, factor, ridge, team)
            team.gather_again(half_of(model, segment))
            yield Fit(segment // 2, OUTPUT_PROJECTIONS[segment % 2], *errors)
            advance(pruned, halves)


def _refit(
    linear: nn.Linear,
    weight: Tensor,
    columns: Tensor,
    parts: Iterable[tuple[Tensor, Tensor, Tensor]],
    factor: float,
    ridge: float,
    team: Team,
) -> tuple[float, float]:
    """Solve some columns of a weight's part in place; return the errors before and after.

    `parts` holds three tensors for each batch: `(B, T, d)` hidden states before the layer is added,
    or zero; its `(B, T, width)` inputs; and the `(B, T, d)` target hidden states, or outputs.
    `factor` multiplies the layer's outputs. A solution that gains next to nothing may lose once it
    is rounded to the model's dtype: then the weights stay.
    """
    device = columns.device
    sums = NormalEquations(linear.out_features, len(columns), device)
    for start, inputs, goal in parts:
        targets = (goal.float() - start.float()) / factor  # float32 keeps small differences
        if linear.bias is not None:
            targets = targets - linear.bias
        sums.add(targets, inputs[..., columns])
    sums.add_up(team)
    present = weight[:, columns.to(weight.device)].to(device)
    solved = sums.solve(present, ridge).to(weight.dtype)
    before, after = sums.error(present, team), sums.error(solved, team)
    if after < before:
        weight[:, columns.to(weight.device)] = solved.to(weight.device)
    return before, min(before, after)


class OutputProjections:
    """The output projections by weight name; reads, writes and resets their kept columns.

    Columns here are of the rows that this process holds. With `resettable` the dense weights are
    held on the CPU, so that columns can be solved for more than once.
    """

    def __init__(
        self, model: nn.Module, units: UnitTable, *, resettable: bool = True, team: Team = ALONE
    ) -> None:
        self._units = units
        found = output_projections(model)
        names = [f"model.layers.{s // 2}.{OUTPUT_PROJECTIONS[s % 2]}.weight" for s in found]
        self.linears = dict(zip(names, found.values(), strict=True))
        self.segments = dict(zip(names, found, strict=True))
        self._parts = {name: team.part(linear.weight) for name, linear in self.linears.items()}
        self._dense = {
            name: part.detach().to("cpu", copy=True)
            for name, part in self._parts.items()
            if resettable
        }

    def columns(self, mask: Tensor) -> dict[str, Tensor]:
        """Indices of the input columns that a `(N,)` mask keeps, by the weight's name."""
        kept, linears = mask.split(self._units.segment_sizes), self.linears.items()
        return {n: kept_places(kept[self.segments[n]], x.in_features) for n, x in linears}

    def extract(self, mask: Tensor) -> dict[str, Tensor]:
        """Copies of the present kept columns, on the CPU, by the weight's name."""
        return {
            name: self._parts[name][:, columns.to(self._parts[name].device)].cpu()
            for name, columns in self.columns(mask).items()
        }

    @torch.no_grad()
    def load(self, mask: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Write columns for a mask into the model."""
        for name, columns in self.columns(mask).items():
            part = self._parts[name]
            part[:, columns.to(part.device)] = kept[name].to(part)

    @torch.no_grad()
    def reset(self) -> None:
        """Write the dense model's weights into the model."""
        for name in self.linears:
            self._parts[name].copy_(self._dense[name])
