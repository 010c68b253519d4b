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
from typing import Literal

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.gates import Gates, GateSite, decoder_layers, gated, straight_through
from grasp_deploy.pruning.objective import distillation_loss, finite, language_loss, mean_loss
from grasp_deploy.pruning.projection import Budget, project

HELDOUT_CHECKS = 16  # masks measured on the held-out text, spread evenly over a stage
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
    """`(N,)` mask of scores: their ranking, projected onto the budget."""
    return project(ranking_of(scores, budget, temperature, per_cost), budget)


def ranking_of(scores: Tensor, budget: Budget, temperature: float, per_cost: bool) -> Tensor:
    """`(N,)` values that scores are ranked by: `p`, or `p / c` for the ablation (section 4.4)."""
    probabilities = torch.sigmoid(scores / temperature)
    if not per_cost:
        return probabilities
    return probabilities / torch.where(budget.costs > 0, budget.costs, 1.0)


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
    noisy: bool = False,
    site: GateSite = "outputs",
) -> Iterator[StepRecord]:
    """Learn `(N,)` scores on a frozen model from `state.step` on; one record a step (algorithm 1).

    With `noisy` each step ranks the scores with fresh Gumbel noise added to `score / temperature`
    (the paper's Gumbel-TopK gating); masks are measured and chosen without it. `site` is where the
    gates of KV groups stand.
    Raises LossError if the loss is no number.
    """

    def gates_now(step: int | None) -> tuple[Tensor, Tensor]:
        scores: Tensor = state.values
        if noisy and step is not None:
            scores = scores + temperature * gumbel_noise(scores, schedule.seed, step)
        mask = keep_mask(scores.detach(), budget, temperature, per_cost)
        return straight_through(torch.sigmoid(scores / temperature), mask), mask

    with gated(model, budget.units, group_width, site) as gates:
        yield from descend("gates", model, gates, gates_now, blocks, schedule, state)


def descend(
    stage: str,
    model: nn.Module,
    gates: Gates,
    gates_now: Callable[[int | None], tuple[Tensor, Tensor]],
    blocks: CalibrationBlocks,
    schedule: Schedule,
    state: LearningState,
) -> Iterator[StepRecord]:
    """Steps of gradient descent on `state.values`.

    `gates_now(step)` gives the `(N,)` gates and mask of a step; of no step, those to be measured.
    """
    device = state.values.device
    total = schedule.steps(blocks)

    def measure() -> float:
        gates.assign(gates_now(None)[0].detach())
        loss = mean_loss(model, blocks.heldout, schedule.batch_size)
        state.consider(loss)
        return loss

    while state.step < total:
        start = time.perf_counter()
        checked = None
        if schedule.is_check(blocks, state.step):
            checked = measure()
        values, mask = gates_now(state.step)
        ids = schedule.batch(blocks, state.step).to(device)
        loss = _step_loss(model, gates, values, ids, schedule.distil)
        loss.backward()
        loss_value = finite(loss, stage, state.step)
        state.optimizer.param_groups[0]["lr"] = schedule.rate(blocks, state.step)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        if schedule.is_averaged(blocks, state.step):
            state.average()
        seconds = time.perf_counter() - start
        yield StepRecord(stage, state.step, total, loss_value, checked, seconds, mask)
    if total and schedule.is_check(blocks, total):
        measure()


def _step_loss(model: nn.Module, gates: Gates, values: Tensor, ids: Tensor, distil: bool) -> Tensor:
    """The loss of a batch under `(N,)` gates: of the text, or against the model with open gates."""
    if not distil:
        gates.assign(values)
        return language_loss(model, ids)
    with torch.no_grad():
        gates.assign(torch.ones_like(values))
        expected = model(input_ids=ids, use_cache=False).logits
    gates.assign(values)
    return distillation_loss(expected, model(input_ids=ids, use_cache=False).logits)


def gumbel_noise(like: Tensor, seed: int, step: int) -> Tensor:
    """`(N,)` standard Gumbel noise of a step, the same on every device."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    uniform = torch.rand(len(like), generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12))).to(like)


def freeze(model: nn.Module, gradient_checkpointing: bool = False) -> None:
    """No weight takes a gradient, no dropout runs: only activations pass gradients on."""
    model.eval()
    model.requires_grad_(False)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        for layer in decoder_layers(model):
            layer.training = True  # the flag alone, which checkpointing asks for; dropout stays off
