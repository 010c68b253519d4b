"""Linear layers with the units whose rows or columns they hold, and sums over these."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.layout import PRUNABLE_LINEARS, decoder_layers, device_of
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Coupled:
    """A linear layer of a model that loses rows or columns with the units of one segment."""

    segment: int
    linear: nn.Linear
    by_rows: bool

    @property
    def parameters(self) -> list[Tensor]:
        """The weight and, where rows go, the bias."""
        takes_bias = self.by_rows and self.linear.bias is not None
        return [self.linear.weight, self.linear.bias] if takes_bias else [self.linear.weight]

    def vector_sums(self, parameter: Tensor, values: Tensor) -> Tensor:
        """Sums of a parameter's `values` over each row or column that goes with units."""
        if parameter is not self.linear.weight:
            return values  # a bias has one value a row
        return values.sum(1 if self.by_rows else 0)


def coupled_linears(model: nn.Module) -> Iterator[Coupled]:
    """All prunable linear layers of a causal language model, layer by layer."""
    for index, layer in enumerate(decoder_layers(model)):
        modules = dict(layer.named_modules())
        for prunable in PRUNABLE_LINEARS:
            if linear := modules.get(prunable.name):
                segment = 2 * index + (prunable.units != "channels")
                yield Coupled(segment, linear, prunable.by_rows)


def unit_sums(
    model: nn.Module, units: UnitTable, vectors_of: Callable[[Coupled], Tensor]
) -> Tensor:
    """`(N,)` float64 sums over a unit's rows and columns, in all linear layers that lose any.

    `vectors_of` gives one value for each row or column of a linear layer. Units lie there one after
    the other, each with the same number of them.
    """
    totals = torch.zeros(units.size, dtype=torch.float64, device=device_of(model))
    of_segment = totals.split(units.segment_sizes)  # views
    for coupled in coupled_linears(model):
        total = of_segment[coupled.segment]
        total += vectors_of(coupled).double().view(len(total), -1).sum(1)
    return totals
