"""Output projections whose kept columns can be solved for, put back and read out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.compensation import kept_columns
from grasp_deploy.pruning.layout import output_projections
from grasp_deploy.pruning.units import UnitTable


class OutputProjections:
    """`down_proj` and `o_proj` of each layer by weight name, in the order of the flat axis.

    With `resettable` the dense model's weights are held on the CPU, so that columns can be solved
    for more than once.
    """

    def __init__(
        self, model: nn.Module, units: UnitTable, group_width: int, *, resettable: bool = True
    ) -> None:
        self._units, self._group_width = units, group_width
        self.linears = {
            f"{name}.weight": linear for name, linear in output_projections(model).items()
        }
        self._dense = {
            name: linear.weight.detach().to("cpu", copy=True)
            for name, linear in self.linears.items()
            if resettable
        }

    def columns(self, mask: Tensor) -> dict[str, Tensor]:
        """Indices of the input columns that a `(N,)` mask keeps, by the weight's name."""
        segments = mask.split(self._units.segment_sizes)
        widths = (1, self._group_width) * self._units.layers
        return {
            name: kept_columns(kept, width)
            for name, kept, width in zip(self.linears, segments, widths, strict=True)
        }

    def extract(self, mask: Tensor) -> dict[str, Tensor]:
        """Copies of the present kept columns, on the CPU, by the weight's name."""
        columns = self.columns(mask)
        return {
            name: linear.weight[:, columns[name]].cpu() for name, linear in self.linears.items()
        }

    @torch.no_grad()
    def load(self, mask: Tensor, kept: dict[str, Tensor]) -> None:
        """Write columns that `extract` gave for a mask into the model."""
        columns = self.columns(mask)
        for name, linear in self.linears.items():
            linear.weight[:, columns[name]] = kept[name].to(linear.weight)

    @torch.no_grad()
    def reset(self) -> None:
        """Write the dense model's weights into the model."""
        for name, linear in self.linears.items():
            linear.weight.copy_(self._dense[name])
