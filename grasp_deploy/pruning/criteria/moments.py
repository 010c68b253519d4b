"""Mean and fluctuation of the inputs of linear layers, column by column, over any text.

Batches are merged one by one (Chan et al. 1979), so nothing grows with the number of tokens and no
large sums are subtracted from each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.hooks import on_inputs


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
        self._merge(len(rows), pivot.double() + offset, centred)

    def _merge(self, tokens: int, mean: Tensor, centred: Tensor) -> None:
        total = self.tokens + tokens
        difference = mean - self.mean
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
    with on_inputs(linears, lambda index, x: moments[index].add(x)):
        for batch in text.batches(model):
            model.model(input_ids=batch, use_cache=False)  # type: ignore[operator]
    return moments
