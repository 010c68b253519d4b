"""Importance by the size of weights alone, without any text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.coupled import Coupled, add_up
from grasp_deploy.pruning.units import UnitTable


@torch.no_grad()
def magnitude_scores(model: nn.Module, units: UnitTable) -> Tensor:
    """`(N,)` float64 squared L2 norms of all weights that go with a unit.

    It is the baseline "L2" of LLM-Pruner (Ma et al. 2023, table 1), whose source adds up squares
    without a root. Squares are a sum over parameters, so per parameter of cost it is their mean.
    """

    def squares(one: Coupled) -> Tensor:
        return sum(
            (
                one.vector_sums(parameter, parameter.float().square())
                for parameter in one.parameters
            ),
            start=torch.zeros((), device=one.linear.weight.device),
        )

    return add_up(model, units, squares)
