"""Cutting in rounds: a smaller budget each time, and new scores of the units that are left.

A one-shot score estimates the loss of removing a unit from the dense model. Once others are gone,
and the kept columns have made up for them, it is another model. So the budget falls to its target
in even steps. Each round scores the units that are left on the present model. Then it refits the
output columns of those that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project


def cut_in_rounds(
    budget: Budget,
    rounds: int,
    score: Callable[[Tensor], Tensor],
    refit: Callable[[Tensor], None],
    *,
    done: int = 0,
    mask: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The `(N,)` scores and mask of each round; the last mask meets the budget itself.

    It continues behind `done` rounds with the `mask` that they left, which is refitted already.
    `score(mask)` gives `(N,)` scores of the model that a mask leaves. `refit(mask)` makes up for
    the units that the new mask removes. A removed unit never comes back: its score is lower than
    that of any unit that is left.
    """
    if mask is None:
        mask = torch.ones(budget.units.size, dtype=torch.bool, device=budget.costs.device)
    for number in range(done + 1, rounds + 1):
        to_remove_later = (budget.total_cost - budget.limit) * (rounds - number) / rounds
        scores = score(mask)
        scores = torch.where(mask, scores, scores.min() - 1)
        # A unit too large to fit leaves room, which removed units must not fill.
        mask = mask & project(scores, replace(budget, limit=budget.limit + to_remove_later))
        refit(mask)
        yield scores, mask
