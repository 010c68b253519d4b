"""Swaps at the cut: is a KV group that was just kept, or just removed, on the right side of it?

KV groups are few and dear, and the scores of many end close to the cut, on either side of it by
the noise of the last steps. So those nearest to it are tried on the other side, one by one: the
group is forced there, the rest is projected onto the budget anew, so that FFN channels make room
for it or fill its place, and the loss decides: that of the model as gates were learnt on it, with
output columns as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

import torch
from torch import Tensor

from grasp_deploy.pruning.projection import Budget, descending, project


@dataclass(frozen=True)
class Swap:
    """A KV group that was tried on the other side of the cut."""

    unit: int  # its place on the flat axis
    keeps: bool  # whether it was to be kept, or to be removed
    loss: float | None  # under the mask that this makes; None: no other mask came of it
    accepted: bool
    mask: Tensor  # (N,) bool: the best so far, this one included


def groups_near_the_cut(ranking: Tensor, budget: Budget, count: int) -> list[int]:
    """The `count` kept and `count` removed KV groups that a `(N,)` ranking has nearest to the cut.

    Nearest first, kept and removed by turns; fewer where there are no more that can be moved, since
    no layer loses its last group and units that cost nothing are always kept.
    """
    mask = project(ranking, budget)
    order = descending(ranking, budget.tie_order).tolist()
    far = _far(ranking)
    movable = (budget.units.is_kv.to(mask.device) & (budget.costs > 0)).tolist()
    is_kept = mask.tolist()

    def nearest(places: Sequence[int], kept: bool) -> list[int]:
        found = (unit for unit in places if movable[unit] and is_kept[unit] == kept)
        can_move = (unit for unit in found if _moved(ranking, budget, unit, not kept, far))
        return list(islice(can_move, count))

    pairs = zip_longest(nearest(order[::-1], True), nearest(order, False))
    return [unit for pair in pairs for unit in pair if unit is not None]


def try_swaps(
    ranking: Tensor, budget: Budget, groups: Sequence[int], loss_of: Callable[[Tensor], float]
) -> Iterator[Swap]:
    """Try each of the groups on the other side of the cut; one that lowers the loss stays there.

    `loss_of(mask)` gives the loss under a `(N,)` mask; infinity if it is no number. It is asked for
    the ranking's own mask first. Every mask meets the budget, as the projection makes them all.
    """
    own = best = project(ranking, budget)
    far = _far(ranking)  # one for all swaps: growing with each, it would overflow
    best_loss = loss_of(best)
    for unit in groups:
        keeps = not bool(own[unit])
        moved = _moved(ranking, budget, unit, keeps, far)
        if moved is None or torch.equal(moved[1], best):
            yield Swap(unit, keeps, None, False, best)
            continue
        loss = loss_of(moved[1])
        accepted = loss < best_loss
        if accepted:
            (ranking, best), best_loss = moved, loss
        yield Swap(unit, keeps, loss, accepted, best)


def _far(ranking: Tensor) -> float:
    """So far out that a chunk of it and the best of the others ranks behind all chunks without."""
    return len(ranking) * (1 + float(ranking.abs().max()))


def _moved(
    ranking: Tensor, budget: Budget, unit: int, keeps: bool, far: float
) -> tuple[Tensor, Tensor] | None:
    """The `(N,)` ranking with a unit at its very end, and its mask; None if it does not cross."""
    forced = ranking.clone()
    forced[unit] = far if keeps else -far
    mask = project(forced, budget)
    return (forced, mask) if bool(mask[unit]) == keeps else None
