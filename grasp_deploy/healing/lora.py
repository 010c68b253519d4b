"""What healing learns: adapters on a pruned model, from the dense model's predictions on text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.format.shapes import DTYPE_BYTES
from grasp_deploy.config.rules import LARGEST_NUMBER, LARGEST_SEED, flag
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.learning_state import CalibrationBlocks, Schedule
from grasp_deploy.pruning.objective import distillation_loss, mean_loss

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WARMUP_SHARE = 0.05  # of the time, in which the learning rate rises
CHECKS = 20  # of the held-out loss, spread evenly over the time
LARGEST_RANK = 4096
DTYPES = ("auto", *DTYPE_BYTES)
PATIENCE = 5  # checks without a new best, after which healing ends
ROUNDING = 1e-9  # of a share: 0.1 + 0.05 is above 0.15
SHORTER = 0.3  # what such a check leaves of the learning rate


@dataclass(frozen=True)
class HealConfig:
    """All that decides a healing, but for the clock where minutes are counted."""

    calibration: str
    calibration_split: str | None = None
    calibration_column: str | None = None
    sequences: int = 512
    sequence_length: int = 512
    minutes: float = 10.0
    steps: int | None = None  # instead of minutes: the same result on every run
    rank: int = 32
    learning_rate: float = 1e-3
    batch_size: int = 2
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        problems = []
        for name in ("sequences", "minutes", "steps", "rank", "learning_rate", "batch_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= LARGEST_NUMBER:
                wrong = f"over {LARGEST_NUMBER}" if value > 0 else "no positive number"
                problems.append(f"{flag(name)} {value} is {wrong}")
        if not 0 <= self.seed <= LARGEST_SEED:
            problems.append(f"--seed {self.seed} is not between 0 and {LARGEST_SEED}")
        if self.rank > LARGEST_RANK:
            problems.append(f"--rank {self.rank} is over {LARGEST_RANK}")
        if self.dtype not in DTYPES:
            problems.append(f"--dtype {self.dtype} is unknown: use {', '.join(DTYPES)}")
        if problems:
            raise InputError("; ".join(problems))


class LoraDistiller:
    """The lessons: adapters on the student, the optimiser, and the best adapters so far."""

    def __init__(
        self, config: HealConfig, blocks: CalibrationBlocks, teacher: nn.Module, student: nn.Module
    ) -> None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(config.seed)  # of the adapters' first values
        adapters = LoraConfig(
            r=config.rank, lora_alpha=2 * config.rank, target_modules=list(LINEARS)
        )
        self.config, self.blocks, self.teacher = config, blocks, teacher.eval()
        # For the order of the blocks alone: how far it goes is a matter of steps or of time.
        self.schedule = Schedule(1, config.batch_size, config.learning_rate, config.seed, "best")
        self.adapted = get_peft_model(student, adapters)  # puts them into the student itself
        self.student = student.eval()  # no dropout to switch on
        self.parameters = [p for p in student.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.rate = config.learning_rate
        self.step, self.seconds = 0, 0.0
        self.first_loss = self.best_loss = self.last_loss = self.heldout_loss()
        self.best = self._snapshot()

    def lessons(self) -> Iterator[dict[str, Any]]:
        """Learn to the end, or until the held-out loss falls no more.

        A check that finds no new best goes back to the best adapters, and on in shorter steps: how
        long they may be depends on the model, and on how little it still has to win.
        """
        began, checks, checks_without_best = time.perf_counter(), 0, 0
        while (share := self._share()) < 1 and checks_without_best < PATIENCE:
            distance = self._learn(share)
            self.seconds = time.perf_counter() - began
            checked, due = None, math.floor(CHECKS * self._share() + ROUNDING)
            if due > checks or not math.isfinite(distance):
                checks = due
                checked = self.last_loss = self.heldout_loss()
                if checked < self.best_loss:
                    checks_without_best = 0
                    self.best_loss, self.best = checked, self._snapshot()
                else:
                    checks_without_best += 1
                    self._back_to_best()
                    self.optimizer.state.clear()  # moments of the way that led astray
                    self.rate *= SHORTER
            done, total = self._progress()
            yield {
                "stage": "healing",
                "step": done,
                "steps": total,
                "distance": distance,
                "heldout_loss": checked,
            }

    def _progress(self) -> tuple[int, int]:
        """Steps done and in all; or seconds, if those are counted."""
        if self.config.steps is not None:
            return self.step, self.config.steps
        limit = 60 * self.config.minutes
        return math.floor(min(self.seconds, limit)), math.ceil(limit)

    def _share(self) -> float:
        """How much of the way is behind us, 1 at the end."""
        if self.config.steps is not None:
            return self.step / self.config.steps
        return self.seconds / (60 * self.config.minutes)

    def merge(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The linear layers' weights by name, the best adapters merged into them, in `dtype`.

        From then on the student is the merged model with the weights rounded so: `heldout_loss`
        is that of the checkpoint, where rounding may have taken what few small steps had won.
        """
        self._back_to_best()
        self.adapted.merge_and_unload()
        weights = {}
        for name, weight in self.student.named_parameters():
            if name.endswith(".weight") and name.rsplit(".", 2)[-2] in LINEARS:
                rounded = weight.detach().to(dtype)
                weight.data.copy_(rounded)
                weights[name] = rounded.cpu().contiguous()
        return weights

    def heldout_loss(self) -> float:
        """Of the student as it is now, in nats per token."""
        return mean_loss(self.student, self.blocks.heldout, self.config.batch_size)

    def _learn(self, share: float) -> float:
        """One step, `share` of the way; its distance from the dense model, in nats per token.

        Where that is not finite no step is taken: the ones before were too long.
        """
        ids = self.schedule.batch(self.blocks, self.step)
        self.step += 1
        ids = ids.to(next(self.teacher.parameters()).device)
        with torch.no_grad():
            expected = self.teacher(input_ids=ids, use_cache=False).logits
        loss = distillation_loss(expected, self.student(input_ids=ids, use_cache=False).logits)
        distance = float(loss.detach())
        if not math.isfinite(distance):
            return distance
        loss.backward()
        rising = min(1.0, share / WARMUP_SHARE + 0.01)
        rate = self.rate * rising * (1 + math.cos(math.pi * min(1.0, share))) / 2
        self.optimizer.param_groups[0]["lr"] = rate
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return distance

    def _back_to_best(self) -> None:
        with torch.no_grad():
            for parameter, best in zip(self.parameters, self.best, strict=True):
                parameter.copy_(best)

    def _snapshot(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]
