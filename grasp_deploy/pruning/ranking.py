"""A ranking of units with the mask that it projects to, made once and handed along."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import descending, project


@dataclass(frozen=True)
class Ranking:
    """Values that rank the units, and the mask that they project to under a budget."""

    values: Tensor  # (N,), higher for units that are kept first
    budget: Budget
    mask: Tensor  # (N,) bool

    @classmethod
    def of_values(cls, values: Tensor, budget: Budget) -> Ranking:
        """The ranking of `(N,)` values of any size, as they are."""
        return cls(values, budget, project(values, budget))

    @classmethod
    def of_scores(
        cls, scores: Tensor, budget: Budget, temperature: float, per_cost: bool
    ) -> Ranking:
        """The ranking of `(N,)` learnt scores by `p`, or by `p / c` for the ablation (section 4.4).

        `p = sigmoid(score / temperature)`.
        """
        probabilities = torch.sigmoid(scores / temperature)
        if per_cost:
            probabilities = probabilities / torch.where(budget.costs > 0, budget.costs, 1.0)
        return cls.of_values(probabilities, budget)

    @cached_property
    def order(self) -> Tensor:
        """`(N,)` int64: units from the best to the worst, ties in the budget's order."""
        return descending(self.values, self.budget.tie_order)
