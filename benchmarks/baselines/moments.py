"""Scores from the moments of linear layers' inputs: FLAP and structured Wanda.

FLAP (An et al. 2024): a column whose input hardly fluctuates can be replaced by a constant, its
mean input times the column, added to the output as a bias. The replacement loses the input's
variance times the column's squared norm, their metric WIFV. Scores leave the bias out, since
Qwen's checkpoints have no place for one; `add_bias` puts it into a model to be measured.

Wanda-sp, a baseline of the same paper, makes Wanda (Sun et al. 2024) structured: the importance of
a column is the sum of `|W|·‖x‖₂` over its weights.

Moments are those of every column over any text. Batches are merged one by one (Chan et al. 1979),
so nothing grows with the number of tokens and no large sums are subtracted from each other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.layout import kept_places, on_inputs, output_projections
from grasp_deploy.pruning.units import UnitTable


class Moments:
    """Running moments of a linear layer's `(tokens, width)` inputs, in float64."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.tokens = 0
        self.mean = torch.zeros(width, dtype=torch.float64, device=device)
        self._centred = torch.zeros_like(self.mean)  # sum of squared distances from the mean

    def add(self, x: Tensor) -> None:
        """Add `(..., width)` inputs of any dtype."""
        rows = x.detach().flatten(end_dim=-2).float()
        # Around a rounded mean float32 loses nothing that matters; the rest is corrected exactly.
        pivot = rows.mean(0)
        distances = rows - pivot
        offset = distances.sum(0, dtype=torch.float64) / len(rows)
        centred = distances.square_().sum(0, dtype=torch.float64) - len(rows) * offset.square()
        tokens, total = len(rows), self.tokens + len(rows)
        difference = pivot.double() + offset - self.mean
        self.mean = self.mean + difference * (tokens / total)
        self._centred += centred + difference.square() * (self.tokens * tokens / total)
        self.tokens = total

    @property
    def variance(self) -> Tensor:
        """`(width,)` sample variances over tokens; 0 for a single token."""
        return self._centred.clamp(min=0) / max(1, self.tokens - 1)

    @property
    def norm(self) -> Tensor:
        """`(width,)` L2 norms over all tokens."""
        return (self._centred.clamp(min=0) + self.tokens * self.mean.square()).sqrt()


@torch.no_grad()
def input_moments(
    model: nn.Module, linears: Sequence[nn.Linear], text: CalibrationText
) -> list[Moments]:
    """Moments of the inputs of each linear layer over a text; forward passes alone."""
    moments = [Moments(linear.in_features, linear.weight.device) for linear in linears]
    with on_inputs(dict(enumerate(linears)), lambda index, x: moments[index].add(x)):
        for batch in text.batches(model):
            model.model(input_ids=batch, use_cache=False)  # type: ignore[operator]
    return moments


@torch.no_grad()
def flap_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 standardised WIFV.

    Columns are standardised among those left in their linear layer, and a KV group has the mean of
    its `G·D` columns. So all layers and both kinds compare in one ranking (their structure AL-AM).
    Their source squares the metric of `o_proj` first; here both kinds are treated alike. Such
    scores have no zero: dividing them by costs means nothing.
    """
    linears = list(output_projections(model).values())
    moments = input_moments(model, linears, text)
    scores = []
    for size, linear, moment in zip(units.segment_sizes, linears, moments, strict=True):
        column_norms = linear.weight.float().square().sum(0, dtype=torch.float64)
        scores.append(_standardised(moment.variance * column_norms).view(size, -1).mean(1))
    return torch.cat(scores)


@torch.no_grad()
def add_bias(model: nn.Module, units: UnitTable, mask: Tensor, text: CalibrationText) -> None:
    """Add to each output projection what its columns that a `(N,)` mask removes add on average."""
    linears = list(output_projections(model).values())
    moments = input_moments(model, linears, text)
    for linear, moment, kept in zip(linears, moments, mask.split(units.segment_sizes), strict=True):
        mean = moment.mean.float()
        mean[kept_places(kept.to(mean.device), linear.in_features)] = 0
        bias = (linear.weight.float() @ mean).to(linear.weight.dtype)
        linear.bias = nn.Parameter(bias if linear.bias is None else linear.bias + bias)


def _standardised(values: Tensor) -> Tensor:
    """Values of mean 0 and variance 1 over those that are not 0, as removed ones are.

    Zeros where all values are the same.
    """
    left = values[values > 0]
    if len(left) < 2:
        return torch.zeros_like(values)
    spread = left.std()
    return (values - left.mean()) / torch.where(spread > 0, spread, 1.0)


@torch.no_grad()
def wanda_structured_scores(model: nn.Module, units: UnitTable, text: CalibrationText) -> Tensor:
    """`(N,)` float64 importance over a text, divided by the mean of the unit's segment.

    The sums compare only within one linear layer, where Wanda-sp ranks them. Divided by their mean,
    1 is an average unit of its layer and kind everywhere, so a global ranking can use them. With
    equal shares (`shares.layerwise`) the division changes nothing, and the result is Wanda-sp.
    """
    linears = list(output_projections(model).values())
    moments = input_moments(model, linears, text)
    scores = []
    for size, linear, moment in zip(units.segment_sizes, linears, moments, strict=True):
        columns = linear.weight.float().abs().sum(0, dtype=torch.float64) * moment.norm
        sums = columns.view(size, -1).sum(1)
        left = (sums > 0).sum()  # removed units count in no mean
        scores.append(sums / (sums.sum() / left if left else 1.0))
    return torch.cat(scores)
