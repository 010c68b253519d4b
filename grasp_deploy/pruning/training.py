"""Learning the scores: one flat parameter, a frozen model, a projection at every step (3.3).

Each step projects the scores onto the budget, runs the model with the mask's gates, and sends the
loss's gradient straight through the mask to the scores. The loop is a generator: it yields a record
a step and leaves drawing and writing to its caller, and all that it must remember lies in a
`LearningState`, so that a run may stop after any step and go on from a saved state bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_deploy.pruning.gates import Gates, decoder_layers, gated, straight_through
from grasp_deploy.pruning.projection import Budget, project

HELDOUT_CHECKS = 16  # masks measured on the held-out text, spread evenly over a stage


class LossError(ValueError):
    """The loss is not a number, so no step can be taken."""


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
    select_best: bool  # keep what did best on the held-out blocks, or what came last

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

    def is_check(self, blocks: CalibrationBlocks, step: int) -> bool:
        """Whether the held-out loss is measured after `step` steps."""
        if not self.select_best or not len(blocks.heldout):
            return False
        total = self.steps(blocks)
        return step == total or step % max(1, total // HELDOUT_CHECKS) == 0


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

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, for saving."""
        adam = self.optimizer.state[self.values]
        return {
            "step": torch.tensor(self.step),
            "values": self.values.detach(),
            "best_values": self.best_values,
            "best_loss": torch.tensor(self.best_loss, dtype=torch.float64),
            **{f"adam_{name}": adam[name] for name in ("step", "exp_avg", "exp_avg_sq") if adam},
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        device = self.values.device
        self.step = int(tensors["step"])
        self.best_loss = float(tensors["best_loss"])
        self.best_values = tensors["best_values"].to(device)
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

    def chosen(self, select_best: bool) -> Tensor:
        """`(N,)` values that the stage ends with."""
        return (
            self.best_values if select_best and self.best_loss < math.inf else self.values.detach()
        )


@dataclass(frozen=True)
class StepRecord:
    """What one step of a stage did."""

    stage: str
    step: int  # steps done
    steps: int  # steps in all
    loss: float  # nats per token on the step's batch
    heldout_loss: float | None  # of the values before this step, where they were measured
    seconds: float
    mask: Tensor  # (N,) bool


def keep_mask(scores: Tensor, budget: Budget, temperature: float, per_cost: bool) -> Tensor:
    """`(N,)` mask of scores: ranked by `p`, or by `p / c` for the ablation (section 4.4)."""
    probabilities = torch.sigmoid(scores / temperature)
    if per_cost:
        probabilities = probabilities / torch.where(budget.costs > 0, budget.costs, 1.0)
    return project(probabilities, budget)


def learn_scores(
    model: nn.Module,
    budget: Budget,
    group_width: int,
    blocks: CalibrationBlocks,
    schedule: Schedule,
    state: LearningState,
    *,
    temperature: float,
    per_cost: bool = False,
) -> Iterator[StepRecord]:
    """Learn `(N,)` scores on a frozen model from `state.step` on; one record a step (algorithm 1).

    Raises LossError if the loss is no number.
    """

    def gates_now() -> tuple[Tensor, Tensor]:
        mask = keep_mask(state.values.detach(), budget, temperature, per_cost)
        probabilities = torch.sigmoid(state.values / temperature)
        return straight_through(probabilities, mask), mask

    with gated(model, budget.units, group_width) as gates:
        yield from descend("gates", model, gates, gates_now, blocks, schedule, state)


def descend(
    stage: str,
    model: nn.Module,
    gates: Gates,
    gates_now: Callable[[], tuple[Tensor, Tensor]],
    blocks: CalibrationBlocks,
    schedule: Schedule,
    state: LearningState,
) -> Iterator[StepRecord]:
    """Steps of gradient descent on `state.values`; `gates_now()` gives `(N,)` gates and mask."""
    device = state.values.device
    total = schedule.steps(blocks)
    while state.step < total:
        start = time.perf_counter()
        values, mask = gates_now()
        gates.assign(values)
        checked = None
        if schedule.is_check(blocks, state.step):
            checked = mean_loss(model, blocks.heldout, schedule.batch_size)
            state.consider(checked)
        loss = language_loss(model, schedule.batch(blocks, state.step).to(device))
        loss.backward()
        loss_value = finite(loss, stage, state.step)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        seconds = time.perf_counter() - start
        yield StepRecord(stage, state.step, total, loss_value, checked, seconds, mask)
    if total and schedule.is_check(blocks, total):
        gates.assign(gates_now()[0].detach())
        state.consider(mean_loss(model, blocks.heldout, schedule.batch_size))


def freeze(model: nn.Module, gradient_checkpointing: bool = False) -> None:
    """No weight takes a gradient, no dropout runs: only activations pass gradients on."""
    model.eval()
    model.requires_grad_(False)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        for layer in decoder_layers(model):
            layer.training = True  # the flag alone, which checkpointing asks for; dropout stays off


def language_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean next-token loss of `(B, T)` ids in nats, in float32."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model: nn.Module, blocks: Tensor, batch_size: int) -> float:
    """Mean next-token loss of `(n, T)` blocks in nats per token."""
    device = next(model.parameters()).device
    total = 0.0
    for batch in blocks.split(batch_size):
        total += float(language_loss(model, batch.to(device))) * len(batch)
    return total / len(blocks)


def finite(loss: Tensor, stage: str, step: int) -> float:
    """The loss as a number; LossError if it is none."""
    value = float(loss.detach())
    if not math.isfinite(value):
        raise LossError(
            f"the loss of the {stage} stage is {value} at step {step + 1}: the model overflows in "
            "this dtype or its weights are damaged; try --dtype float32"
        )
    return value
