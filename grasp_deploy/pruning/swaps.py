"""Swaps at the cut: KV groups that were just kept, or just removed, tried on the other side.

KV groups are few and expensive, and noise of the last steps decides the side of many at the cut. So
the nearest are tried on the other side, one by one. The group is forced there, and the other units
are projected onto the rest of the budget: FFN channels make room for it or fill its place. The loss
decides: that of the model as gates were learnt on it, with its output columns as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

import torch
from torch import Tensor

from grasp_deploy.pruning.projection import Ranking


@dataclass(frozen=True)
class Swap:
    """A KV group that was tried on the other side of the cut."""

    unit: int  # its place on the flat axis
    keeps: bool  # True where it was to be kept, False where it was to be removed
    loss: float | None  # under the resulting mask; None where that mask is the best one already
    accepted: bool
    mask: Tensor  # (N,) bool: the best so far, this one included


def groups_near_the_cut(ranking: Ranking, count: int) -> list[int]:
    """The `count` kept and `count` removed KV groups nearest to the cut of a ranking.

    Nearest first, kept and removed by turns. Fewer where no more can be moved: no layer loses its
    last group, and units that cost nothing are always kept.
    """
    budget, forcing_value = ranking.budget, _forcing_value(ranking)
    is_movable = budget.units.is_kv.to(ranking.mask.device) & (budget.costs > 0)
    groups = ranking.order[is_movable[ranking.order]]
    is_kept = ranking.mask[groups]

    def nearest(candidates: Tensor, keeps: bool) -> list[int]:
        can_move = (u for u in candidates.tolist() if _moved(ranking, u, keeps, forcing_value))
        return list(islice(can_move, count))

    pairs = zip_longest(nearest(groups[is_kept].flip(0), False), nearest(groups[~is_kept], True))
    return [unit for pair in pairs for unit in pair if unit is not None]


def try_swaps(
    ranking: Ranking, groups: Sequence[int], loss_of: Callable[[Tensor], float]
) -> Iterator[Swap]:
    """Try each of the groups on the other side of the cut; one that lowers the loss stays there.

    `loss_of(mask)` gives the loss under a `(N,)` mask, infinity if it is not finite. It is called
    with the ranking's own mask first. Every mask meets the budget, since the projection makes it.
    """
    best, best_loss = ranking, loss_of(ranking.mask)
    # The same for all swaps: growing with each, it would overflow.
    forcing_value = _forcing_value(ranking)
    for unit in groups:
        keeps = not bool(ranking.mask[unit])
        moved = _moved(best, unit, keeps, forcing_value)
        if moved is None or torch.equal(moved.mask, best.mask):
            yield Swap(unit, keeps, None, False, best.mask)
            continue
        loss = loss_of(moved.mask)
        accepted = loss < best_loss
        if accepted:
            best, best_loss = moved, loss
        yield Swap(unit, keeps, loss, accepted, best.mask)


def _forcing_value(ranking: Ranking) -> float:
    """A value so large that its sign alone puts a unit's chunk before or behind all others."""
    return len(ranking.values) * (1 + float(ranking.values.abs().max()))


def _moved(ranking: Ranking, unit: int, keeps: bool, forcing_value: float) -> Ranking | None:
    """The ranking with a unit at its very end; None if the unit does not cross the cut."""
    values = ranking.values.clone()
    values[unit] = forcing_value if keeps else -forcing_value
    forced = Ranking(values, ranking.budget)
    return forced if bool(forced.mask[unit]) == keeps else None
