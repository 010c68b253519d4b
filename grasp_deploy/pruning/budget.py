"""The budget: costs, limit and multiples that every mask meets (section 3.3)."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grasp_deploy.pruning.units import UnitTable


class BudgetError(ValueError):
    """No mask can meet the budget or the multiples.

    `smallest_limit` is the least budget that any ranking can meet, where the budget is under it.
    """

    def __init__(self, message: str, smallest_limit: float | None = None) -> None:
        super().__init__(message)
        self.smallest_limit = smallest_limit


@dataclass(frozen=True)
class Budget:
    """Costs, limit, multiples and order of ties, under which scores are projected.

    Tensors live on the device of the scores. Build with `make_budget`, which checks it.
    """

    units: UnitTable
    costs: Tensor  # (N,) float64, >= 0
    limit: float  # B, in the unit of the costs
    ffn_multiple: int
    kv_multiple: int
    tie_order: Tensor  # (N,) int64: units of equal score in the order in which they are kept

    @cached_property
    def segment_of_unit(self) -> Tensor:
        """`(N,)` int64 segment of each unit, on the device of the costs."""
        return self.units.segment_of_unit.to(self.costs.device)

    @property
    def multiples(self) -> tuple[int, ...]:
        """`(2L,)` numbers of units: each segment keeps a multiple of its number."""
        return (self.ffn_multiple, self.kv_multiple) * self.units.layers

    @property
    def least_kept(self) -> list[int]:
        """`(2L,)` numbers of units that each segment keeps at least, in whole chunks.

        One, or the experts that a token takes, or all of cost 0 if more. 0 for an empty segment.
        """
        free = [int((part == 0).sum()) for part in self.costs.cpu().split(self.units.segment_sizes)]
        floors = (max(1, self.units.experts_per_token), 1) * self.units.layers
        sizes = self.units.segment_sizes
        least = [max(n, f * (size > 0)) for n, f, size in zip(free, floors, sizes, strict=True)]
        return [math.ceil(n / a) * a for n, a in zip(least, self.multiples, strict=True)]

    @property
    def smallest_limit(self) -> float:
        """The smallest limit that any ranking can meet: each segment keeps its dearest chunk."""
        floor = 0.0
        parts = self.costs.cpu().split(self.units.segment_sizes)
        for costs, least in zip(parts, self.least_kept, strict=True):
            free = int((costs == 0).sum())  # they are kept; dearer ones fill up their chunk
            floor += float(costs.topk(least - free).values.sum())
        return floor

    @property
    def total_cost(self) -> float:
        return float(self.costs.sum())

    def cost_of(self, mask: Tensor) -> float:
        """Summed cost of the units that a `(N,)` mask keeps."""
        return float(self.costs[mask.bool()].sum())


def make_budget(
    units: UnitTable,
    costs: Tensor,
    limit: float,
    *,
    ffn_multiple: int = 1,
    kv_multiple: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Budget:
    """Make and check a budget; `seed` decides the order of units whose scores are equal.

    Where all scores start equal, that order makes the first masks. A permutation drawn on the CPU
    is the same on every device. Unlike the order of a stable sort it favours no layer. Costs are
    rounded to the fine grid of `exactly_summable`. Raises BudgetError if no mask fits: a limit
    under the floor, or multiples no layer can meet.
    """
    if not bool((costs > 0).any()):
        raise BudgetError("no unit costs anything under this cost model: there is nothing to prune")
    tie_order = torch.randperm(units.size, generator=torch.Generator().manual_seed(seed))
    budget = Budget(
        units=units,
        costs=exactly_summable(costs).to(device),
        limit=float(limit),
        ffn_multiple=ffn_multiple,
        kv_multiple=kv_multiple,
        tie_order=tie_order.to(device),
    )
    sizes = zip(units.segment_sizes, budget.least_kept, budget.multiples, strict=True)
    for segment, (size, least, multiple) in enumerate(sizes):
        if least > size:
            kind = units.kinds[segment % 2]
            raise BudgetError(
                f"layer {segment // 2} has fewer {kind} ({size}) than it must keep ({least}): a "
                f"multiple of {multiple} with all that cost nothing; choose one that divides {size}"
            )
    floor = budget.smallest_limit
    if limit < floor:
        least_ffn = math.ceil(max(1, units.experts_per_token) / ffn_multiple) * ffn_multiple
        raise BudgetError(
            "the budget is under the floor, the cost of the least that every layer keeps "
            f"({units.kinds[0]}: {least_ffn}, KV groups: {kv_multiple})",
            smallest_limit=floor,
        )
    return budget


def exactly_summable(costs: Tensor) -> Tensor:
    """`(N,)` float64 costs rounded to a grid on which any sum is exact, in any order.

    The grid is a power of two. Float64 has 53 bits, which leaves room for the largest cost times
    the number of units. Costs on the grid do not change. The largest lies between 1e-100 and 1e100,
    or is 0.
    """
    costs = costs.double()
    largest = float(costs.max())
    if largest == 0:
        return costs
    grid = 2.0 ** (52 - math.ceil(math.log2(largest)) - math.ceil(math.log2(len(costs))))
    return (costs * grid).round() / grid
