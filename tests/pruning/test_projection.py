"""The projection against an independent, readable reference, over thousands of random cases."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grasp_deploy.pruning.budget import (
    Budget,
    BudgetError,
    exactly_summable,
    make_budget,
    smallest_limit,
)
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.budget_cases import Case, cases


def segments_of(budget: Budget) -> list[tuple[range, int]]:
    """The units of each kind in each layer, and their multiple."""
    segments, start = [], 0
    for index, size in enumerate(budget.units.segment_sizes):
        multiple = budget.kv_multiple if index % 2 else budget.ffn_multiple
        segments.append((range(start, start + size), multiple))
        start += size
    return segments


def ranking_of_chunks(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """The chunks that are kept whatever their score, and the others from the best to the worst."""
    costs, p = case.budget.costs.tolist(), case.probabilities.tolist()
    tie_order = case.budget.tie_order.tolist()
    by_score = sorted(tie_order, key=lambda unit: -p[unit])  # stable: equals stay in tie order
    reserved, others = [], []
    for segment, multiple in segments_of(case.budget):
        units = [unit for unit in by_score if unit in segment]
        units.sort(key=lambda unit: costs[unit] > 0)  # units of cost 0 first
        whole = len(units) // multiple * multiple
        chunks = [units[i : i + multiple] for i in range(0, whole, multiple)]
        free = [chunk for chunk in chunks if any(costs[unit] == 0 for unit in chunk)]
        reserved += free or chunks[:1]
        others += chunks[len(free) or 1 :]
    place = {unit: i for i, unit in enumerate(tie_order)}
    others.sort(
        key=lambda chunk: (
            -sum(Fraction(p[unit]) for unit in chunk) / len(chunk),
            min(place[unit] for unit in chunk),
        )
    )
    return reserved, others


def cost(budget: Budget, units: Sequence[int]) -> Fraction:
    costs = budget.costs.tolist()
    return sum((Fraction(costs[unit]) for unit in units), Fraction(0))


@settings(max_examples=1000, deadline=None)
@given(cases())
def test_the_prefix_of_the_ranking_that_fits_is_kept_and_no_more(case: Case) -> None:
    budget = case.budget
    kept = set(project(case.probabilities, budget).nonzero().flatten().tolist())
    assert cost(budget, list(kept)) <= Fraction(budget.limit)

    for segment, multiple in segments_of(budget):
        in_segment = kept.intersection(segment)
        assert in_segment and len(in_segment) % multiple == 0
        assert in_segment.issuperset(unit for unit in segment if budget.costs[unit] == 0)

    reserved, others = ranking_of_chunks(case)
    taken = [chunk for chunk in others if kept.issuperset(chunk)]
    assert taken == others[: len(taken)], "the chunks kept are no prefix of the ranking"
    assert kept == {unit for chunk in [*reserved, *taken] for unit in chunk}
    if len(taken) < len(others):  # the next one would not have fitted
        assert cost(budget, [*kept, *others[len(taken)]]) > Fraction(budget.limit)


def papers_rule(case: Case) -> list[int]:
    """Sort, reserve the best of every layer and kind, take the prefix until one does not fit."""
    budget, p, costs = case.budget, case.probabilities.tolist(), case.budget.costs.tolist()
    ranking = sorted(budget.tie_order.tolist(), key=lambda unit: -p[unit])
    kept = [unit for unit in ranking if costs[unit] == 0]
    for segment, _ in segments_of(budget):
        if not any(unit in segment for unit in kept):
            kept.append(next(unit for unit in ranking if unit in segment))
    for unit in [unit for unit in ranking if unit not in kept]:
        if sum(costs[unit] for unit in kept) + costs[unit] > budget.limit:
            break
        kept.append(unit)
    return sorted(kept)


@settings(max_examples=800, deadline=None)
@given(cases(multiples=False))
def test_without_multiples_the_rule_is_the_papers(case: Case) -> None:
    mask = project(case.probabilities, case.budget)
    assert mask.nonzero().flatten().tolist() == papers_rule(case)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(0, 2**32))
def test_at_the_floor_every_ranking_works_and_under_it_none_is_accepted(
    case: Case, seed: int
) -> None:
    had = case.budget
    shape = {"ffn_multiple": had.ffn_multiple, "kv_multiple": had.kv_multiple}
    floor = smallest_limit(had)
    budget = make_budget(had.units, had.costs, floor, **shape)
    generator = torch.Generator().manual_seed(seed)
    for p in (torch.rand(had.units.size, generator=generator), had.costs.float()):
        assert budget.cost_of(project(p, budget)) <= floor
    # Tight: where the dearest units lead the ranking, all of the floor is spent.
    assert budget.cost_of(project(had.costs.float(), budget)) == floor
    if floor > 0:
        with pytest.raises(BudgetError, match="under the floor") as error:
            make_budget(had.units, had.costs, floor * (1 - 1e-9), **shape)
        assert error.value.smallest_limit == floor


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_dtype_of_the_scores_does_not_matter(case: Case) -> None:
    rounded = case.probabilities.bfloat16()
    masks = [project(p, case.budget) for p in (rounded, rounded.float(), rounded.double())]
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[1], masks[2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("multiples", [(1, 1), (64, 4)])
@pytest.mark.parametrize("levels", [1, 3, 2**20])
def test_the_device_does_not_matter(multiples: tuple[int, int], levels: int) -> None:
    units = UnitTable.of_layers([(1408, 8)] * 12)
    costs = units.spread([3.1] * 12, [1024.7] * 12)
    shape = {"ffn_multiple": multiples[0], "kv_multiple": multiples[1]}
    p = torch.randint(levels, (units.size,), generator=torch.Generator().manual_seed(0)) / levels
    limit = 0.5 * float(costs.sum())
    on_cpu = project(p, make_budget(units, costs, limit, **shape))
    on_gpu = project(p.cuda(), make_budget(units, costs, limit, **shape, device="cuda"))
    assert torch.equal(on_cpu, on_gpu.cpu())


def test_ties_favour_no_layer() -> None:
    """Scores start equal: the first mask must not keep the first layers and empty the last."""
    units = UnitTable.of_layers([(200, 4)] * 4)
    budget = make_budget(units, torch.ones(units.size), 0.5 * units.size)
    kept = units.kept_per_layer(project(torch.full((units.size,), 0.5), budget))
    assert all(80 <= channels <= 120 for channels, _ in kept)
    other = make_budget(units, torch.ones(units.size), 0.5 * units.size, seed=1)
    equal = torch.full((units.size,), 0.5)
    assert not torch.equal(project(equal, budget), project(equal, other))


def test_a_small_example_by_hand() -> None:
    """Channels cost 3, groups 8. What every layer must keep costs 22, and all of it 34."""
    units = UnitTable.of_layers([(3, 1), (3, 1)])  # channels 0-2 and group 3; 4-6 and 7
    costs = units.spread([3, 3], [8, 8])
    p = torch.tensor([0.1, 0.8, 0.7, 0.2, 0.3, 0.4, 0.9, 0.6])
    for limit, kept in (
        (22, [1, 3, 6, 7]),
        (24, [1, 3, 6, 7]),
        (25, [1, 2, 3, 6, 7]),
        (33, [1, 2, 3, 4, 5, 6, 7]),
        (34, [0, 1, 2, 3, 4, 5, 6, 7]),
    ):
        assert project(p, make_budget(units, costs, limit)).nonzero().flatten().tolist() == kept


def test_a_small_example_with_multiples_by_hand() -> None:
    """Pairs of channels: means 0.7 and 0.35 in layer 0, 0.55 and 0.375 in layer 1; groups free."""
    units = UnitTable.of_layers([(5, 1), (4, 1)])  # channels 0-4 and group 5; 6-9 and 10
    costs = units.spread([1, 1], [0, 0])
    p = torch.tensor([0.8, 0.0, 0.3, 0.4, 0.6, 0.5, 0.3, 0.6, 0.5, 0.45, 0.5])
    for limit, kept in (
        (4, [0, 4, 5, 7, 8, 10]),
        (5, [0, 4, 5, 7, 8, 10]),
        (6, [0, 4, 5, 6, 7, 8, 9, 10]),
        (8, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (9, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]),  # channel 1 finds no partner
    ):
        budget = make_budget(units, costs, limit, ffn_multiple=2)
        assert project(p, budget).nonzero().flatten().tolist() == kept


ONE_LAYER = UnitTable.of_layers([(6, 2)])


@pytest.mark.parametrize(
    ("costs", "limit", "multiples", "message"),
    [
        ([0] * 8, 1, (1, 1), "nothing to prune"),
        ([1] * 8, 1, (1, 1), "the budget 1 is under the floor 2, .*1 FFN channels, 1 KV groups"),
        ([0.001] * 8, 0.001, (1, 1), "the budget 0.001 is under the floor 0.002"),
        ([1] * 8, 8, (7, 1), "layer 0 has 6 FFN channels, fewer than the multiple 7.*at most 6"),
        ([1] * 8, 8, (1, 3), "layer 0 has 2 KV groups, fewer than the multiple 3.*at most 2"),
        ([0] * 6 + [1] * 2, 2, (4, 1), "6 FFN channels, no multiple of 4, .* removes 0 of them"),
        ([0] * 5 + [1] * 3, 3, (4, 1), "6 FFN channels, no multiple of 4, .* removes 1 of them"),
    ],
)
def test_what_no_mask_can_meet_is_refused(
    costs: list[float], limit: float, multiples: tuple[int, int], message: str
) -> None:
    with pytest.raises(BudgetError, match=message):
        make_budget(
            ONE_LAYER,
            torch.tensor(costs).double(),
            limit,
            ffn_multiple=multiples[0],
            kv_multiple=multiples[1],
        )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.just(0.0) | st.floats(1e-100, 1e12), min_size=2, max_size=40))
def test_costs_on_the_grid_add_up_exactly_and_hardly_change(values: list[float]) -> None:
    costs = torch.tensor(values, dtype=torch.float64)
    on_grid = exactly_summable(costs)
    assert torch.equal(exactly_summable(on_grid), on_grid)
    assert float(on_grid.sum()) == sum(map(Fraction, on_grid.tolist()))
    assert float((on_grid - costs).abs().max()) <= 2.0**-46 * max(values)
