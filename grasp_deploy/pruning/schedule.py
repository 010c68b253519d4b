"""Calibration sequences, and the schedule by which a stage of learning walks over them."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

HELDOUT_CHECKS = 4  # measurements on held-out text, evenly over a stage of as many steps or more


def checks_of(steps: int) -> set[int]:
    """The numbers of steps after which a stage measures on held-out text, at its start too."""
    return {steps * n // HELDOUT_CHECKS for n in range(HELDOUT_CHECKS + 1)}


@dataclass(frozen=True)
class CalibrationBlocks:
    """Calibration sequences as token ids: those to learn from, and those to measure masks on."""

    train: Tensor  # (n, T) int64
    heldout: Tensor  # (h, T) int64; may be empty

    @cached_property
    def rows(self) -> Tensor:
        """`(n + h, T)` ids: those to learn from, then those held out."""
        return torch.cat([self.train, self.heldout])

    @property
    def heldout_places(self) -> Tensor:
        """`(h,)` places among the rows."""
        return torch.arange(len(self.train), len(self.rows))

    @classmethod
    def split(cls, sequences: Tensor, *, apart: bool = False) -> Self:
        """Hold out a sixteenth of `(n, T)` sequences; at least one of two or more.

        They are spread evenly, among sequences of the same documents; or with `apart` all at the
        end, where they tell what other documents lose.
        """
        count = max(1, round(len(sequences) / 16)) if len(sequences) > 1 else 0
        places = torch.linspace(0, len(sequences) - 1, count).round().long()
        if apart:
            places = torch.arange(len(sequences) - count, len(sequences))
        is_heldout = torch.zeros(len(sequences), dtype=torch.bool)
        is_heldout[places] = True
        return cls(train=sequences[~is_heldout], heldout=sequences[is_heldout])


@dataclass(frozen=True)
class Schedule:
    """The steps of one stage over its calibration sequences."""

    blocks: CalibrationBlocks
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    cosine: bool = True  # the learning rate falls to 0; False: it is constant
    most_steps: int | None = None

    @property
    def steps(self) -> int:
        steps = self.epochs * self.steps_per_epoch
        return steps if self.most_steps is None else min(steps, self.most_steps)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.blocks.train) / self.batch_size)

    def batch(self, step: int) -> Tensor:
        """`(B,)` places among the rows; each epoch has its own order, drawn from the seed alone."""
        epoch, place = divmod(step, self.steps_per_epoch)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.blocks.train), generator=generator)
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def rate(self, step: int) -> float:
        """Learning rate of a step; with `cosine` it falls along half a cosine, to 0 at the end."""
        if not self.cosine:
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * step / self.steps)) / 2

    def batches(self, step: int, processes: int = 1) -> list[Tensor]:
        """The places of rows that a team reads from a step on: each step's, then held-out ones."""
        heldout = self.blocks.heldout_places.split(self.batch_size * processes)
        return [*map(self.batch, range(step, self.steps)), *filter(len, heldout)]

    def is_check(self, step: int) -> bool:
        """True if the held-out loss is measured after `step` steps."""
        return len(self.blocks.heldout) > 0 and step in checks_of(self.steps)
