"""Shares hold the budget, and every layer keeps its share to within one unit."""

import math

from hypothesis import given, settings
from torch import Tensor

from benchmarks.baselines.shares import by_share
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project
from tests.pruning.budget_cases import Case, cases


def kept_in_segments(budget: Budget, mask: Tensor) -> list[int]:
    return [int(part.sum()) for part in mask.split(budget.units.segment_sizes)]


@settings(max_examples=300)
@given(cases())
def test_one_share_explains_what_every_layer_keeps(case: Case) -> None:
    """There is a share `q` with which each segment keeps `q·n`, give or take a chunk.

    `q·n` is bounded by the floor and by the last whole chunk; the budget holds and is spent.
    """
    budget, p = case
    mask = project(by_share(p, budget), budget)
    assert budget.cost_of(mask) <= budget.limit
    lowest, highest, all_kept = -math.inf, math.inf, True
    columns = budget.units.segment_sizes, budget.multiples, budget.least_kept
    rows = zip(kept_in_segments(budget, mask), *columns, strict=True)
    for kept, size, multiple, floor in rows:
        most = size // multiple * multiple
        if kept - multiple > floor:  # else the floor explains it, however small the share
            lowest = max(lowest, (kept - multiple) / size)
        if kept + multiple < most:
            highest = min(highest, (kept + multiple) / size)
        all_kept &= kept == most
    assert lowest <= highest + 1e-9
    dearest = max(budget.costs.tolist()) * max(budget.multiples)
    assert all_kept or budget.limit - budget.cost_of(mask) <= dearest
