"""Cutting in rounds, with scores and refits that are written down."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from grasp_deploy.pruning.budget import make_budget
from grasp_deploy.pruning.progressive import cut_in_rounds
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import generator

UNITS = UnitTable.of_layers([(6, 2)])
COSTS = torch.tensor([1.0] * 6 + [2.0] * 2)
BUDGET = make_budget(UNITS, COSTS, 4.0)  # of 10


def test_the_budget_falls_in_even_steps_and_nothing_comes_back() -> None:
    asked: list[Tensor] = []

    def score(mask: Tensor) -> Tensor:
        """Units scored lowest first would be the best later, had they not been removed."""
        asked.append(mask)
        return torch.tensor([6.0, 5, 4, 3, 2, 1, 9, 8]) * (1 if len(asked) == 1 else -1)

    refitted: list[Tensor] = []
    rounds = list(cut_in_rounds(BUDGET, 3, score, refitted.append))
    masks = [mask for _, mask in rounds]
    for mask, limit in zip(masks, (8.0, 6.0, 4.0), strict=True):
        assert limit - 2 < BUDGET.cost_of(mask) <= limit  # 2: the dearest unit, which did not fit
    assert all(torch.equal(mask, other) for mask, other in zip(masks, refitted, strict=True))
    assert asked[0].all() and torch.equal(asked[1], masks[0]) and torch.equal(asked[2], masks[1])
    assert masks[0].tolist() == [1, 1, 1, 1, 0, 0, 1, 1]
    assert not (masks[2] & ~masks[1]).any() and not (masks[1] & ~masks[0]).any()


def test_it_goes_on_behind_rounds_that_are_done() -> None:
    scores = torch.tensor([6.0, 5, 4, 3, 2, 1, 9, 8])
    rounds = partial(cut_in_rounds, BUDGET, 3, lambda _mask: scores, lambda _mask: None)
    (_, first), *expected = rounds()
    for now, then in zip(rounds(done=1, mask=first), expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(now, then, strict=True))


def test_what_is_removed_stays_so_even_where_a_large_unit_leaves_room() -> None:
    """The first unit is dear and never fits, so every round has room for what is gone already."""
    units, draw = UnitTable.of_layers([(30, 3)]), generator(0)
    costs = torch.where(units.is_kv, 11.0, 1.0).double()
    budget = make_budget(units, costs, 0.3 * float(costs.sum()))
    before = torch.ones(units.size, dtype=torch.bool)
    for _, mask in cut_in_rounds(
        budget, 20, lambda _: torch.rand(units.size, generator=draw), lambda _: None
    ):
        assert not (mask & ~before).any()
        assert mask[units.ffn(0)].any() and mask[units.kv(0)].any()
        before = mask
    assert budget.cost_of(before) <= budget.limit
