"""Cutting in rounds: a smaller budget each time, and new scores of the units that are left.

A one-shot score estimates the loss of removing a unit from the dense model. Once others are gone,
and the kept columns have made up for them, it is another model. So the budget falls to its target
in even steps, and each round scores the units that are left on the present model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project


def cut_round(
    budget: Budget,
    mask: Tensor,
    scores: Tensor,
    number: int,
    rounds: int,
    start_cost: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The `(N,)` scores and mask of round `number` of `rounds`; the last meets the budget itself.

    The first starts from a mask of `start_cost`, by default that of all units.
    `scores` are those of the model that `mask` left, of the round before. A removed unit never
    comes back: its score is lower than that of any unit that is left.
    """
    start_cost = budget.total_cost if start_cost is None else start_cost
    to_remove_later = (start_cost - budget.limit) * (rounds - number) / rounds
    scores = below_all(scores, ~mask)
    # A unit too large to fit leaves room, which removed units must not fill.
    mask = mask & project(scores, replace(budget, limit=budget.limit + to_remove_later))
    return scores, mask


def below_all(scores: Tensor, removed: Tensor) -> Tensor:
    """`(N,)` scores in which removed units rank below all others."""
    return torch.where(removed, scores.min() - 1, scores)
