"""Cutting in rounds, with scores that are written down."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget, make_budget
from grasp_deploy.pruning.progressive import by_rank, cut_round, per_cost
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable

UNITS = UnitTable.of_layers([(6, 2)])
BUDGET = make_budget(UNITS, torch.tensor([1.0] * 6 + [2.0] * 2), 4.0)  # of 10
SCORES = torch.tensor([6.0, 5, 4, 3, 2, 1, 9, 8])


def cut(budget: Budget, rounds: int, score: Callable[[int], Tensor]) -> Iterator[Tensor]:
    """The masks of all rounds."""
    mask = torch.ones(budget.units.size, dtype=torch.bool)
    for number in range(1, rounds + 1):
        _, mask = cut_round(budget, mask, score(number), number, rounds, budget.total_cost)
        yield mask


def test_the_budget_falls_in_even_steps_and_nothing_comes_back() -> None:
    """Units scored lowest first would be the best later, had they not been removed."""
    masks = list(cut(BUDGET, 3, lambda number: SCORES if number == 1 else -SCORES))
    for mask, limit in zip(masks, (8.0, 6.0, 4.0), strict=True):
        assert limit - 2 < BUDGET.cost_of(mask) <= limit  # 2: the dearest unit, which did not fit
    assert masks[0].tolist() == [1, 1, 1, 1, 0, 0, 1, 1]
    assert not (masks[2] & ~masks[1]).any() and not (masks[1] & ~masks[0]).any()


def test_rounds_from_a_larger_budgets_mask_step_down_from_its_cost() -> None:
    larger = torch.tensor([1, 1, 1, 1, 0, 0, 1, 1]).bool()
    _, mask = cut_round(BUDGET, larger, SCORES, 1, 2, start_cost=BUDGET.cost_of(larger))
    assert (BUDGET.cost_of(larger), BUDGET.cost_of(mask), BUDGET.limit) == (8.0, 6.0, 4.0)


def test_what_is_removed_stays_so_even_where_a_large_unit_leaves_room() -> None:
    """The first unit is dear and never fits, so every round has room for what is gone already."""
    units = UnitTable.of_layers([(30, 3)])
    costs = torch.where(units.is_kv, 11.0, 1.0).double()
    budget = make_budget(units, costs, 0.3 * float(costs.sum()))
    draw = torch.Generator().manual_seed(0)
    before = torch.ones(units.size, dtype=torch.bool)
    for mask in cut(budget, 20, lambda _: torch.rand(units.size, generator=draw)):
        assert not (mask & ~before).any()
        assert mask[units.ffn(0)].any() and mask[units.kv(0)].any()
        before = mask
    assert budget.cost_of(before) <= budget.limit


def test_scores_per_cost_spare_what_costs_nothing() -> None:
    got = per_cost(torch.tensor([3.0, 3.0, 3.0]), torch.tensor([2.0, 0.0, 12.0]).double())
    assert got.tolist() == [1.5, 3.0, 0.25]


def test_scores_by_rank_project_to_the_same_mask() -> None:
    scores = SCORES.clone()
    scores[::3] = 5.5  # equals, which the tie order decides
    ranked = by_rank(scores, BUDGET)
    assert torch.equal(project(scores, BUDGET), project(ranked, BUDGET))
    torch.testing.assert_close(ranked.sort().values, torch.linspace(-1, 1, UNITS.size))


@pytest.mark.parametrize("seed", range(9))
def test_chunks_by_rank_too_where_a_few_units_are_far_ahead(seed: int) -> None:
    units = UnitTable.of_layers([(128, 4)] * 4)
    costs = units.spread([1.0] * 4, [5.0] * 4)
    budget = make_budget(units, costs, 0.6 * float(costs.sum()), ffn_multiple=8, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(units.size, generator=draw).mul(2).exp()
    assert torch.equal(project(scores, budget), project(by_rank(scores, budget), budget))
