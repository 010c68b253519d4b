"""The projection against an independent, readable reference, over thousands of random cases."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grasp_deploy.pruning.budget import BudgetError, exactly_summable, make_budget
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.budget_cases import Case, cases


def ranking_of_chunks(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """The chunks that are kept whatever their score, and the others from the best to the worst."""
    budget, p = case[0], case[1].tolist()
    costs, tie_order = budget.costs.tolist(), budget.tie_order.tolist()
    by_score = sorted(tie_order, key=lambda unit: -p[unit])  # stable: equals stay in tie order
    reserved, others = [], []
    for segment, multiple in enumerate(budget.multiples):
        units = [unit for unit in by_score if budget.segment_of_unit[unit] == segment]
        units.sort(key=lambda unit: costs[unit] > 0)  # units of cost 0 first
        whole = len(units) // multiple * multiple
        chunks = [units[i : i + multiple] for i in range(0, whole, multiple)]
        free = [chunk for chunk in chunks if any(costs[unit] == 0 for unit in chunk)]
        least = max(1, budget.units.experts_per_token) if segment % 2 == 0 else 1
        first = max(len(free), -(-least // multiple))
        reserved += chunks[:first]
        others += chunks[first:]
    place = {unit: i for i, unit in enumerate(tie_order)}
    others.sort(
        key=lambda chunk: (
            -sum(Fraction(p[unit]) for unit in chunk) / len(chunk),
            min(place[unit] for unit in chunk),
        )
    )
    return reserved, others


@settings(max_examples=500)
@given(cases(most_experts=4), st.booleans())
def test_the_prefix_of_the_ranking_that_fits_is_kept_and_no_more(case: Case, plain: bool) -> None:
    """Without multiples it is the paper's rule: chunks are units."""
    budget, p = case
    if plain:
        budget = replace(budget, ffn_multiple=1, kv_multiple=1)
    reserved, others = ranking_of_chunks((budget, p))
    costs = [Fraction(cost) for cost in budget.costs.tolist()]
    kept = {unit for chunk in reserved for unit in chunk}
    for chunk in others:
        if sum(costs[unit] for unit in kept.union(chunk)) > Fraction(budget.limit):
            break
        kept.update(chunk)
    assert sum(costs[unit] for unit in kept) <= Fraction(budget.limit)
    for dtype in (torch.float32, torch.float64):
        assert set(project(p.to(dtype), budget).nonzero().flatten().tolist()) == kept
    assert kept.issuperset((budget.costs == 0).nonzero().flatten().tolist())


@settings(max_examples=150)
@given(cases(most_experts=4), st.integers(0, 2**32))
def test_at_the_floor_every_ranking_works_and_under_it_none_is_accepted(
    case: Case, seed: int
) -> None:
    had = case[0]
    multiples = had.ffn_multiple, had.kv_multiple
    with_limit = partial(
        make_budget, had.units, had.costs, ffn_multiple=multiples[0], kv_multiple=multiples[1]
    )
    floor = had.smallest_limit
    budget = with_limit(floor)
    random = torch.rand(had.units.size, generator=torch.Generator().manual_seed(seed))
    assert budget.cost_of(project(random, budget)) <= floor
    # Tight: where the dearest units lead the ranking, all of the floor is spent.
    assert budget.cost_of(project(had.costs.float(), budget)) == floor
    if floor > 0:
        with pytest.raises(BudgetError, match="under the floor") as error:
            with_limit(floor * (1 - 1e-9))
        assert error.value.smallest_limit == floor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("multiples", [(1, 1), (64, 4)])
@pytest.mark.parametrize("levels", [1, 2**20])
def test_the_device_does_not_matter(multiples: tuple[int, int], levels: int) -> None:
    units = UnitTable.of_layers([(1408, 8)] * 12)
    costs = units.spread([3.1] * 12, [1024.7] * 12)
    ffn, kv = multiples
    p = torch.randint(levels, (units.size,), generator=torch.Generator().manual_seed(0)) / levels
    limit = 0.5 * float(costs.sum())
    budget_on = partial(make_budget, units, costs, limit, ffn_multiple=ffn, kv_multiple=kv)
    on_cpu = project(p, budget_on(device="cpu"))
    assert torch.equal(on_cpu, project(p.cuda(), budget_on(device="cuda")).cpu())


def test_ties_favour_no_layer() -> None:
    """Scores start equal: the first mask must not keep the first layers and empty the last."""
    units = UnitTable.of_layers([(200, 4)] * 4)
    equal = torch.full((units.size,), 0.5)
    budgets = [make_budget(units, torch.ones(units.size), 408, seed=seed) for seed in (0, 1)]
    masks = [project(equal, budget) for budget in budgets]
    assert all(80 <= channels <= 120 for channels, _ in units.kept_per_layer(masks[0]))
    assert not torch.equal(*masks)


def test_a_small_example_by_hand() -> None:
    """Channels cost 3, groups 8. What every layer must keep costs 22, and all of it 34."""
    units = UnitTable.of_layers([(3, 1), (3, 1)])  # channels 0-2 and group 3; 4-6 and 7
    costs = units.spread([3, 3], [8, 8])
    p = torch.tensor([0.1, 0.8, 0.7, 0.2, 0.3, 0.4, 0.9, 0.6])
    for limit, kept in (
        (24, [1, 3, 6, 7]),
        (25, [1, 2, 3, 6, 7]),
        (33, [1, 2, 3, 4, 5, 6, 7]),
        (34, [0, 1, 2, 3, 4, 5, 6, 7]),
    ):
        assert project(p, make_budget(units, costs, limit)).nonzero().flatten().tolist() == kept


@pytest.mark.parametrize(
    ("costs", "limit", "multiples", "message"),
    [
        ([0] * 8, 1, (1, 1), "nothing to prune"),
        (
            [0.001] * 8,
            0.001,
            (1, 1),
            "under the floor, .*channels: 1, KV groups: 1",
        ),
        ([1] * 8, 8, (7, 1), r"layer 0 .* channels \(6\) .* \(7\): a multiple of 7 .* 6$"),
        ([0] * 5 + [1] * 3, 3, (1, 3), r"KV groups \(2\) .* \(3\): a multiple of 3 .* 2$"),
        ([0] * 5 + [1] * 3, 3, (4, 1), r"FFN channels \(6\) .* \(8\): a multiple of 4 .* 6$"),
    ],
)
def test_what_no_mask_can_meet_is_refused(
    costs: list[float], limit: float, multiples: tuple[int, int], message: str
) -> None:
    units, (ffn, kv) = UnitTable.of_layers([(6, 2)]), multiples
    exact = torch.tensor(costs, dtype=torch.float64)
    with pytest.raises(BudgetError, match=message):
        make_budget(units, exact, limit, ffn_multiple=ffn, kv_multiple=kv)


def test_the_floor_is_told_in_whole_multiples() -> None:
    units = UnitTable.of_layers([(6, 2)], experts_per_token=3)
    with pytest.raises(BudgetError, match="experts: 4, KV groups: 1"):
        make_budget(units, torch.ones(8), 1, ffn_multiple=2)


@settings(max_examples=200)
@given(st.lists(st.just(0.0) | st.floats(1e-100, 1e12), min_size=2, max_size=40))
def test_costs_on_the_grid_add_up_exactly_and_hardly_change(values: list[float]) -> None:
    costs = torch.tensor(values, dtype=torch.float64)
    on_grid = exactly_summable(costs)
    assert torch.equal(exactly_summable(on_grid), on_grid)
    assert float(on_grid.sum()) == sum(map(Fraction, on_grid.tolist()))
    assert float((on_grid - costs).abs().max()) <= 2.0**-46 * max(values)
