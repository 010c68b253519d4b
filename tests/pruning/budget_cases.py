"""Random budgets and rankings for the tests of the projection and of allocations."""

import random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from grasp_deploy.pruning.budget import Budget, BudgetError, make_budget
from grasp_deploy.pruning.units import UnitTable

Case = tuple[Budget, Tensor]  # and `(N,)` float32 probabilities to rank by


def costs_of(kind: str, units: UnitTable, dice: random.Random) -> Tensor:
    uniform = units.spread([dice.randint(1, 9)] * units.layers, [17] * units.layers)
    match kind:
        case "uniform":  # as the built-in cost models have it
            return uniform
        case "free-ffn":
            return torch.where(units.is_kv, uniform, 0.0)
        case "free-kv":
            return torch.where(units.is_kv, 0.0, uniform)
        case "some-free":
            return torch.tensor([dice.choice((0, 0, 1, 3)) for _ in range(units.size)]).double()
    return torch.tensor([dice.choice((0.1, 0.2, dice.random())) for _ in range(units.size)])


@st.composite
def cases(draw: st.DrawFn, most_experts: int = 0) -> Case:
    """Shapes from hypothesis, so that failures shrink; the numbers within from its seed."""
    sizes = st.tuples(st.integers(1, 12), st.integers(1, 5))
    layers = draw(st.lists(sizes, min_size=1, max_size=4))
    most = min(most_experts, *(size for size, _ in layers))
    units = UnitTable.of_layers(layers, draw(st.integers(0, most)))
    multiples = (
        draw(st.integers(1, min(units.ffn_channels))),
        draw(st.integers(1, min(units.kv_groups))),
    )
    dice = random.Random(draw(st.integers(0, 2**32)))
    kinds = ("uniform", "free-ffn", "free-kv", "some-free", "real")
    costs = costs_of(draw(st.sampled_from(kinds)), units, dice)
    if not costs.any():
        costs[0] = 1
    levels = draw(st.sampled_from((1, 2, 5, 2**23)))  # few levels make many ties
    draws = [(1 + dice.randrange(levels)) / (levels + 1) for _ in range(units.size)]
    try:
        budget = budget_at(units, costs, multiples, draw(st.integers(0, 20)) / 20, dice)
    except BudgetError:  # units that always stay and fill no multiple
        budget = budget_at(units, costs, (1, 1), 0.5, dice)
    return budget, torch.tensor(draws)


def budget_at(
    units: UnitTable, costs: Tensor, multiples: tuple[int, int], place: float, dice: random.Random
) -> Budget:
    """A budget with its limit at `place` between the floor (0) and the total (1)."""
    options: dict[str, Any] = {
        "ffn_multiple": multiples[0],
        "kv_multiple": multiples[1],
        "seed": dice.randrange(9),
    }
    total = make_budget(units, costs, 2 * float(costs.sum()), **options)
    floor = total.smallest_limit
    return make_budget(units, costs, floor + place * max(0, total.total_cost - floor), **options)
