"""Cutting in rounds: a little less budget each time, and scores taken anew from what is left.

A one-shot score tells what removing a unit costs the dense model. Once others are gone, and the
kept columns have made up for them, it is another model. So the budget falls to its target in even
steps; in each round the units that are left are scored on the model as it now is, and the output
columns of those that stay are solved for anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from grasp_deploy.pruning.projection import Budget, project


def cut_in_rounds(
    budget: Budget,
    rounds: int,
    score: Callable[[Tensor], Tensor],
    repair: Callable[[Tensor], None],
    *,
    done: int = 0,
    mask: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The `(N,)` scores and mask of each round; the last mask meets the budget itself.

    It goes on behind `done` rounds with the `mask` that they left, which is repaired already.
    `score(mask)` gives `(N,)` scores of the model that a mask leaves, `repair(mask)` makes up for
    the units that the new one removes. What is removed once never comes back: its score is lower
    than that of any unit that is left.
    """
    if mask is None:
        mask = torch.ones(budget.units.size, dtype=torch.bool, device=budget.costs.device)
    for number in range(done + 1, rounds + 1):
        to_go = (budget.total_cost - budget.limit) * (rounds - number) / rounds
        scores = score(mask)
        scores = torch.where(mask, scores, scores.min() - 1)
        # A unit too large to fit leaves room, which what is removed already must not fill.
        mask = mask & project(scores, replace(budget, limit=budget.limit + to_go))
        repair(mask)
        yield scores, mask
