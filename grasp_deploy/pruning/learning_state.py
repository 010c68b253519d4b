"""What a stage of learning walks over, by what schedule, and all that it remembers on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

HELDOUT_CHECKS = 16  # masks measured, at least, on the held-out text, evenly over a stage
AVERAGED_SHARE = 1 / 4  # of a stage's steps, the last ones, where their values are averaged

# What a stage ends with: the values that did best on the held-out blocks, those of the last step,
# or the mean of those behind each of the last quarter of the steps.
Select = Literal["best", "last", "average"]


@dataclass(frozen=True)
class CalibrationBlocks:
    """Calibration text as token ids: what is learnt from, and what masks are measured on."""

    train: Tensor  # (n, T) int64
    heldout: Tensor  # (h, T) int64; may be empty

    @classmethod
    def split(cls, blocks: Tensor, heldout_share: float = 1 / 16) -> CalibrationBlocks:
        """Hold out an evenly spread share of `(n, T)` blocks; at least one where there are two."""
        count = max(1, round(len(blocks) * heldout_share)) if len(blocks) > 1 else 0
        chosen = torch.zeros(len(blocks), dtype=torch.bool)
        if count:
            chosen[torch.linspace(0, len(blocks) - 1, count).round().long()] = True
        return cls(train=blocks[~chosen], heldout=blocks[chosen])


@dataclass(frozen=True)
class Schedule:
    """How one stage walks over the calibration blocks."""

    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    select: Select
    cosine: bool = False  # let the learning rate fall to 0, or keep it as it is
    distil: bool = False  # learn from the dense model's logits, or from the text

    def steps(self, blocks: CalibrationBlocks) -> int:
        return self.epochs * self.steps_per_epoch(blocks)

    def steps_per_epoch(self, blocks: CalibrationBlocks) -> int:
        return math.ceil(len(blocks.train) / self.batch_size)

    def batch(self, blocks: CalibrationBlocks, step: int) -> Tensor:
        """`(B, T)` ids of a step; each epoch has its own order, drawn from the seed alone."""
        epoch, place = divmod(step, self.steps_per_epoch(blocks))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(blocks.train), generator=generator)
        return blocks.train[order[place * self.batch_size : (place + 1) * self.batch_size]]

    def rate(self, blocks: CalibrationBlocks, step: int) -> float:
        """Learning rate of a step; with `cosine` it falls along half a cosine, to 0 at the end."""
        if not self.cosine:
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * step / self.steps(blocks))) / 2

    def is_check(self, blocks: CalibrationBlocks, step: int) -> bool:
        """Whether the held-out loss is measured after `step` steps."""
        if self.select != "best" or not len(blocks.heldout):
            return False
        total = self.steps(blocks)
        return step == total or step % max(1, total // HELDOUT_CHECKS) == 0

    def is_averaged(self, blocks: CalibrationBlocks, step: int) -> bool:
        """Whether the values behind `step` steps, one at least, belong to the average."""
        total = self.steps(blocks)
        return self.select == "average" and step > total - math.ceil(AVERAGED_SHARE * total)


class LearningState:
    """Everything a stage remembers from one step to the next."""

    def __init__(self, start: Tensor, learning_rate: float) -> None:
        self.step = 0
        self.values = nn.Parameter(start)  # (N,) scores or scales
        self.optimizer = torch.optim.AdamW(
            [self.values], lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.best_values = start.clone()
        self.best_loss = math.inf
        self.averaged = 0  # values that the mean is of
        self.mean_values = start.clone()

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, for saving."""
        adam = self.optimizer.state[self.values]
        return {
            "step": torch.tensor(self.step),
            "values": self.values.detach(),
            "best_values": self.best_values,
            "best_loss": torch.tensor(self.best_loss, dtype=torch.float64),
            **self._average(),
            **{f"adam_{name}": adam[name] for name in ("step", "exp_avg", "exp_avg_sq") if adam},
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        device = self.values.device
        self.step = int(tensors["step"])
        self.best_loss = float(tensors["best_loss"])
        self.best_values = tensors["best_values"].to(device)
        self.averaged = int(tensors.get("averaged", 0))
        if self.averaged:
            self.mean_values.copy_(tensors["mean_values"])
        with torch.no_grad():
            self.values.copy_(tensors["values"])
        if "adam_step" in tensors:
            self.optimizer.state[self.values] = {
                "step": tensors["adam_step"],  # AdamW counts on the CPU
                "exp_avg": tensors["adam_exp_avg"].to(device),
                "exp_avg_sq": tensors["adam_exp_avg_sq"].to(device),
            }

    def consider(self, loss: float) -> None:
        """Remember the present values if none did better on the held-out blocks."""
        if loss < self.best_loss:
            self.best_loss = loss
            self.best_values = self.values.detach().clone()

    def average(self) -> None:
        """Take the present values into the mean."""
        self.averaged += 1
        self.mean_values = self.mean_values.lerp(self.values.detach(), 1 / self.averaged)

    def chosen(self, select: Select) -> Tensor:
        """`(N,)` values that the stage ends with; the last where no others were kept."""
        if select == "best" and self.best_loss < math.inf:
            return self.best_values
        return self.mean_values if select == "average" and self.averaged else self.values.detach()

    def _average(self) -> dict[str, Tensor]:
        """What is saved of the mean: nothing before its first values, or where none is made."""
        if not self.averaged:
            return {}
        return {"mean_values": self.mean_values, "averaged": torch.tensor(self.averaged)}
