"""Scores that read no text: a seeded order, and the size of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.layout import Coupled, unit_sums
from grasp_deploy.pruning.units import UnitTable


def random_scores(units: UnitTable, seed: int) -> Tensor:
    """`(N,)` float64, a permutation of 0, 1/N, ... drawn on the CPU: the same for every device."""
    order = torch.randperm(units.size, generator=torch.Generator().manual_seed(seed))
    return order.double() / units.size


@torch.no_grad()
def magnitude_scores(model: nn.Module, units: UnitTable) -> Tensor:
    """`(N,)` float64 squared L2 norms of all weights that go with a unit.

    It is the baseline "L2" of LLM-Pruner (Ma et al. 2023, table 1), whose source adds up squares
    without a root. Squares are a sum over parameters, so per parameter of cost it is their mean.
    """

    def squares(coupled: Coupled) -> Tensor:
        parts = [coupled.vector_sums(p, p.float().square()) for p in coupled.parameters]
        return torch.stack(parts).sum(0)

    return unit_sums(model, units, squares)
