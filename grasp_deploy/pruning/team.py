"""The processes that share a run, as the maths sees them; here this one, by itself.

The maths asks its team which rows to read, and to add up what was found. A team of several
processes is made elsewhere, as a subclass.
"""

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
        """Sum numbered tensors over all processes; yield those that this process is to work on."""
        yield from sums

    def part(self, rows: Tensor) -> Tensor:
        """This process's rows of a weight, as a view, or of another tensor with as many rows."""
        return rows

    def held(self, weight: Tensor) -> Tensor:
        """What this process holds of a weight, as a view: its rows, or all of a norm."""
        return weight

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """Hold all rows of a module's weights within the `with` block, however often it is run."""
        return nullcontext()

    def gather_again(self, module: nn.Module) -> None:
        """Gather a module's weights anew, once processes have written into their parts."""


ALONE = Team()
