"""Cutting in rounds: a smaller budget each time, and new scores of the units that are left.

A one-shot score estimates the loss of removing a unit from the dense model. Once others are gone,
and the kept columns have made up for them, it is another model. So the budget falls to its target
in even steps, and each round scores the units that are left on the present model.
"""

from dataclasses import replace

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import chunked, descending, places_in, project


def cut_round(
    budget: Budget, mask: Tensor, scores: Tensor, number: int, rounds: int, start_cost: float
) -> tuple[Tensor, Tensor]:
    """The `(N,)` scores and mask of round `number` of `rounds`; the last meets the budget itself.

    `mask` is that of the round before, and `scores` are those of the model that it left. The first
    round starts from a mask of `start_cost`. A removed unit never comes back: its score is lower
    than that of any unit that is left.
    """
    to_remove_later = (start_cost - budget.limit) * (rounds - number) / rounds
    scores = below_all(scores, ~mask)
    # A unit too large to fit leaves room, which removed units must not fill.
    mask = mask & project(scores, replace(budget, limit=budget.limit + to_remove_later))
    return scores, mask


def below_all(scores: Tensor, removed: Tensor) -> Tensor:
    """`(N,)` scores in which removed units rank below all others."""
    return torch.where(removed, scores.min() - 1, scores)


def per_cost(scores: Tensor, costs: Tensor) -> Tensor:
    """`(N,)` float32 scores per unit of cost; units that cost nothing, always kept, stay as is.

    For scores that are losses, or sums over a unit's parts, and not negative.
    """
    return (scores.double() / torch.where(costs > 0, costs, 1.0)).float()


def by_rank(scores: Tensor, budget: Budget) -> Tensor:
    """`(N,)` float32 scores from 1 down to -1 in even steps, in the order of `(N,)` scores.

    Learning starts from them. At first it moves every score by about the same: the number of steps
    until a unit crosses the cut should depend on its rank, not on the scale of its loss. Equals are
    ordered as the projection orders them, and chunks by their means: so the mask stays the same.
    """
    order = descending(scores, budget.tie_order)
    _, chunk_of_unit, chunks = chunked(scores, budget)
    order = order[places_in(chunks)[chunk_of_unit[order]].argsort(stable=True)]
    even = torch.linspace(1, -1, len(scores), device=scores.device)
    return torch.empty_like(even).scatter_(0, order, even)
