"""Which weights of a recovery are the best, by what each kind of held-out text shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Heldout:
    """A student on held-out sequences, in nats per token; `kinds` numbers the source of each."""

    kinds: list[int]
    divergences: list[float]  # from the dense model
    losses: list[float]
    dense_loss: float  # of all

    @property
    def divergence(self) -> float:
        """The mean over kinds."""
        return fmean(self._by_kind(self.divergences).values())

    @property
    def loss(self) -> float:
        """The mean over sequences."""
        return fmean(self.losses)

    def is_better(self, first: Heldout, best: Heldout) -> bool:
        """True if it is nearer to the dense model than the best, and no kind is worse than first.

        Of the loss only what is beyond noise counts as worse. It counts at all since what refits
        and scales learnt of the text may go first, while the divergence falls.
        """
        nearer = first._by_kind(first.divergences)
        if self.divergence >= best.divergence or any(
            mean > nearer[kind] for kind, mean in self._by_kind(self.divergences).items()
        ):
            return False
        rises = [now - then for now, then in zip(self.losses, first.losses, strict=True)]
        return not any(is_rise(of_kind) for of_kind in self._lists(rises).values())

    def _by_kind(self, values: list[float]) -> dict[int, float]:
        return {kind: fmean(of_kind) for kind, of_kind in self._lists(values).items()}

    def _lists(self, values: list[float]) -> dict[int, list[float]]:
        lists: dict[int, list[float]] = {kind: [] for kind in self.kinds}
        for kind, value in zip(self.kinds, values, strict=True):
            lists[kind].append(value)
        return lists


def is_rise(changes: list[float]) -> bool:
    """True if the mean of changes is above 0 by more than two standard errors; not of one alone."""
    if len(changes) < 2:
        return False
    return fmean(changes) > 2 * stdev(changes) / math.sqrt(len(changes))
