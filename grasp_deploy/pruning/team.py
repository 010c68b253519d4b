"""The processes that share a run, as the maths sees them; here this one, by itself.

The maths asks its team what to read, and to sum what was read. Who else is in it is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn


class Team:
    """One process: it reads all text, holds all weights, and has nobody to add anything up with."""

    size = 1

    def deal(self, rows: Tensor) -> tuple[Tensor, float]:
        """The rows of a batch that this process takes, and their share of it.

        All processes run a model equally often: with a share of 0 one only takes part.
        """
        return rows, 1.0

    def add_up(self, *tensors: Tensor) -> None:
        """Sum tensors over all processes, in place; the same bits in each."""

    def take_turns(self, sums: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
        """Of numbered tensors, summed over all processes, those that this one is to work on."""
        yield from sums

    def part(self, rows: Tensor) -> Tensor:
        """This process's rows of a weight, whose memory they share, or of what lies beside it."""
        return rows

    def held(self, weight: Tensor) -> Tensor:
        """What this process holds of a weight, whose memory they share: its rows, or a norm."""
        return weight

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """Hold all rows of a module's weights within the `with` block, however often it is run."""
        return nullcontext()

    def gather_again(self, module: nn.Module) -> None:
        """Take what processes have written into their parts of a gathered module's weights."""


ALONE = Team()
