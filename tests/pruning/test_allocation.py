"""Allocations hold the budget, and every layer keeps its share to within one unit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grasp_deploy.pruning.allocation import (
    ALLOCATIONS,
    allocate,
    by_rank,
    by_share,
    owl_offsets,
    per_cost,
)
from grasp_deploy.pruning.budget import Budget, make_budget
from grasp_deploy.pruning.costs import Widths, parameters_cost
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.budget_cases import Case, cases

UNITS = UnitTable.of_layers([(96, 8)] * 5)
COSTS = parameters_cost(UNITS, Widths(64, 32, 2, False, False, 4, 4))  # 192 and 12,288


def budget_of(keep: float, ffn_multiple: int = 1, kv_multiple: int = 1) -> Budget:
    limit = keep * float(COSTS.sum())
    return make_budget(UNITS, COSTS, limit, ffn_multiple=ffn_multiple, kv_multiple=kv_multiple)


def random_scores(seed: int = 0) -> Tensor:
    return torch.rand(UNITS.size, generator=torch.Generator().manual_seed(seed))


def segments(budget: Budget, mask: Tensor) -> list[tuple[int, int, int, int]]:
    """For each segment: units, units kept, its multiple, and how many it keeps in any case."""
    rows = []
    parts = zip(
        mask.split(budget.units.segment_sizes),
        budget.costs.split(budget.units.segment_sizes),
        strict=True,
    )
    for index, (kept, costs) in enumerate(parts):
        multiple = budget.kv_multiple if index % 2 else budget.ffn_multiple
        free = int((costs == 0).sum())
        floor = math.ceil(free / multiple) * multiple if free else multiple
        rows.append((len(kept), int(kept.sum()), multiple, floor))
    return rows


@settings(max_examples=300, deadline=None)
@given(cases(), st.booleans())
def test_one_share_explains_what_every_layer_keeps(case: Case, owl: bool) -> None:
    """There is a share `q` with which each segment keeps `q·n`, give or take a chunk.

    `q·n` is bounded by the floor and by the last whole chunk; the budget holds and is spent.
    """
    budget = case.budget
    offsets = torch.linspace(-0.1, 0.1, budget.units.layers).double() * owl
    mask = project(by_share(case.probabilities, budget, offsets), budget)
    assert budget.cost_of(mask) <= budget.limit
    lowest, highest = -math.inf, math.inf
    for index, (size, kept, multiple, floor) in enumerate(segments(budget, mask)):
        most = size // multiple * multiple
        shift = float(offsets[index // 2])
        if kept - multiple > floor:  # else the floor explains it, however small the share
            lowest = max(lowest, (kept - multiple) / size - shift)
        if kept + multiple < most:
            highest = min(highest, (kept + multiple) / size - shift)
    assert lowest <= highest + 1e-9
    unspent = budget.limit - budget.cost_of(mask)
    whole = all(kept == size // a * a for size, kept, a, _ in segments(budget, mask))
    dearest = max(budget.costs.tolist()) * max(budget.ffn_multiple, budget.kv_multiple)
    assert whole or unspent <= dearest


@settings(max_examples=100, deadline=None)
@given(st.floats(0.15, 1), st.integers(0, 1000))
def test_layerwise_keeps_the_budgets_share_of_every_layer_to_one_unit(
    keep: float, seed: int
) -> None:
    budget = budget_of(keep)
    mask = project(allocate("layerwise", random_scores(seed), budget), budget)
    for size, kept, _, _ in segments(budget, mask):
        assert abs(kept - keep * size) <= 1 + 1e-6


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.3, 0.8),
    st.lists(st.floats(0, 0.1), min_size=5, max_size=5),
    st.integers(0, 1000),
)
def test_owl_keeps_more_where_outliers_are_and_the_budgets_share_on_the_mean(
    keep: float, ratios: list[float], seed: int
) -> None:
    budget, outliers = budget_of(keep), torch.tensor(ratios)
    mask = project(allocate("owl", random_scores(seed), budget, outliers), budget)
    spread = outliers.double() - outliers.double().min()
    shares = 0.16 * spread / spread.max() if spread.any() else spread
    wanted = (keep + shares - shares.mean()).tolist()
    for index, (size, kept, _, _) in enumerate(segments(budget, mask)):
        assert abs(kept - wanted[index // 2] * size) <= 1 + 1e-6
    assert abs(sum(wanted) / 5 - keep) < 1e-9


def test_within_a_layer_the_best_units_stay() -> None:
    budget, scores = budget_of(0.5), random_scores()
    for name in ALLOCATIONS:
        mask = project(allocate(name, scores, budget, torch.rand(5)), budget)
        for part, kept in zip(
            scores.split(UNITS.segment_sizes), mask.split(UNITS.segment_sizes), strict=True
        ):
            assert bool(kept.any())
            assert bool(kept.all()) or float(part[kept].min()) > float(part[~kept].max())


def test_equal_scores_are_kept_in_the_order_of_ties() -> None:
    budget = budget_of(0.5)
    mask = project(allocate("layerwise", torch.ones(UNITS.size), budget), budget)
    place = torch.empty_like(budget.tie_order)
    place[budget.tie_order] = torch.arange(UNITS.size)
    for part, kept in zip(
        place.split(UNITS.segment_sizes), mask.split(UNITS.segment_sizes), strict=True
    ):
        assert int(part[kept].max()) < int(part[~kept].min())


def test_shares_make_up_for_what_the_floor_the_targets_and_multiples_hold_up() -> None:
    units = UnitTable.of_layers([(100, 1), (100, 1)])
    budget = make_budget(units, units.spread([1, 1], [50, 50]), 120.0)
    mask = project(allocate("layerwise", torch.rand(units.size), budget), budget)
    assert units.kept_per_layer(mask) == [(10, 1), (10, 1)]  # the groups stay and cost 100 of 120
    channels = make_budget(UNITS, torch.where(UNITS.is_kv, 0.0, 1.0), 0.25 * 5 * 96)
    in_multiples = budget_of(0.5, ffn_multiple=8, kv_multiple=2)
    for budget, kept in ((channels, (24, 8)), (in_multiples, (48, 4))):
        mask = project(allocate("layerwise", random_scores(), budget), budget)
        assert UNITS.kept_per_layer(mask) == [kept] * 5


def test_a_budget_for_all_keeps_all() -> None:
    budget = replace(budget_of(0.5), limit=2 * float(COSTS.sum()))
    for name in ("layerwise", "owl"):
        assert bool(project(allocate(name, random_scores(), budget, torch.rand(5)), budget).all())


def test_layers_with_the_same_outliers_keep_the_same() -> None:
    assert torch.equal(owl_offsets(torch.full((4,), 0.02)), torch.zeros(4).double())
    torch.testing.assert_close(
        owl_offsets(torch.tensor([0.01, 0.02, 0.03])), torch.tensor([-0.08, 0, 0.08]).double()
    )


def test_global_changes_nothing_and_an_unknown_allocation_is_refused() -> None:
    scores = random_scores()
    assert allocate("global", scores, budget_of(0.5)) is scores
    with pytest.raises(ValueError, match="'even': choose one of global, layerwise, owl"):
        allocate("even", random_scores(), budget_of(0.5))


def test_scores_per_cost_spare_what_costs_nothing() -> None:
    got = per_cost(torch.tensor([3.0, 3.0, 3.0]), torch.tensor([2.0, 0.0, 12.0]).double())
    assert got.tolist() == [1.5, 3.0, 0.25]
    assert got.dtype == torch.float32


def test_scores_by_rank_project_to_the_same_mask() -> None:
    budget, scores = budget_of(0.6), random_scores()
    scores[::3] = 0.5  # equals, which the tie order decides
    ranked = by_rank(scores, budget)
    assert torch.equal(project(scores, budget), project(ranked, budget))
    torch.testing.assert_close(ranked.sort().values, torch.linspace(-1, 1, UNITS.size))
