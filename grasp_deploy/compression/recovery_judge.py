"""Which weights of a recovery are the best, by what each kind of held-out text shows."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Heldout:
    """A student on held-out sequences, in nats per token; `kinds` numbers the source of each."""

    kinds: list[int]
    divergences: list[float]  # from the dense model
    loss: float  # on those that losses are stated on
    dense_loss: float

    @property
    def divergence(self) -> float:
        """The mean over kinds."""
        return fmean(self._by_kind().values())

    def is_better(self, first: Heldout, best: Heldout) -> bool:
        """True if it is nearer to the dense model than the best, and no kind further than first.

        The text's own loss does not count: it falls where prompts and templates are learnt by
        heart, which the dense model never predicts, and rises where that is unlearnt.
        """
        nearer = first._by_kind()
        return self.divergence < best.divergence and all(
            mean <= nearer[kind] for kind, mean in self._by_kind().items()
        )

    def _by_kind(self) -> dict[int, float]:
        lists: dict[int, list[float]] = {kind: [] for kind in self.kinds}
        for kind, value in zip(self.kinds, self.divergences, strict=True):
            lists[kind].append(value)
        return {kind: fmean(of_kind) for kind, of_kind in lists.items()}
