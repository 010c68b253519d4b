"""Random budgets and rankings for the tests of the projection."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from grasp_deploy.pruning.budget import Budget, BudgetError, make_budget, smallest_limit
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Case:
    """A budget and a ranking for it."""

    budget: Budget
    probabilities: Tensor  # (N,) float32


def costs_of(kind: str, units: UnitTable, dice: random.Random) -> Tensor:
    match kind:
        case "uniform":  # as the built-in cost models have it
            return units.spread([dice.randint(1, 9)] * units.layers, [17] * units.layers)
        case "free-ffn":
            return units.spread([0] * units.layers, [dice.randint(1, 9)] * units.layers)
        case "free-kv":
            return units.spread([dice.randint(1, 9)] * units.layers, [0] * units.layers)
        case "whole":
            return torch.tensor([dice.randint(1, 9) for _ in range(units.size)]).double()
        case "whole-some-free":
            return torch.tensor([dice.choice((0, 0, 1, 3)) for _ in range(units.size)]).double()
    return torch.tensor([dice.choice((0.1, 0.2, dice.random())) for _ in range(units.size)])


COSTS = ("uniform", "free-ffn", "free-kv", "whole", "whole-some-free", "real")


@st.composite
def cases(draw: st.DrawFn, multiples: bool = True) -> Case:
    """Shapes from hypothesis, so that failures shrink; the numbers within from its seed."""
    sizes = st.tuples(st.integers(1, 12), st.integers(1, 5))
    units = UnitTable.of_layers(draw(st.lists(sizes, min_size=1, max_size=4)))
    ffn_multiple = draw(st.integers(1, min(units.ffn_channels))) if multiples else 1
    kv_multiple = draw(st.integers(1, min(units.kv_groups))) if multiples else 1
    dice = random.Random(draw(st.integers(0, 2**32)))
    costs = costs_of(draw(st.sampled_from(COSTS)), units, dice)
    if not costs.any():
        costs[0] = 1
    levels = draw(st.sampled_from((1, 2, 5, 2**23)))  # few levels make many ties
    draws = [(1 + dice.randrange(levels)) / (levels + 1) for _ in range(units.size)]
    try:
        limit = limit_for(units, costs, ffn_multiple, kv_multiple, draw(st.integers(0, 20)) / 20)
    except BudgetError:  # units that cost nothing and fill no multiple: test_costless_... has these
        ffn_multiple = kv_multiple = 1
        limit = limit_for(units, costs, 1, 1, 0.5)
    budget = make_budget(
        units,
        costs,
        limit,
        ffn_multiple=ffn_multiple,
        kv_multiple=kv_multiple,
        seed=dice.randrange(1000),
    )
    return Case(budget, torch.tensor(draws))


def limit_for(units: UnitTable, costs: Tensor, a: int, t: int, place: float) -> float:
    """A limit at `place` between the floor (0) and the total (1)."""
    total = make_budget(units, costs, 2 * float(costs.sum()), ffn_multiple=a, kv_multiple=t)
    floor = smallest_limit(total)
    return max(floor, floor + place * (total.total_cost - floor))
