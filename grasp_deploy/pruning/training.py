"""Learning scores (3.3) or scales (3.4): one flat parameter on a frozen model.

Each step of the scores projects them onto the budget and runs the model with the mask's gates. The
loss's gradient goes straight through the mask to the scores. The loop is a generator: it yields a
record per step and leaves drawing and writing to its caller. All that it keeps lies in a
`LearningState`, so a run may stop after any step and continue from a saved state bit for bit.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.gates import gated, scaled_norms, straight_through
from grasp_deploy.pruning.layout import decoder_layers
from grasp_deploy.pruning.objective import OVERFLOW, LossError, finite, language_loss, mean_of
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.schedule import Schedule
from grasp_deploy.pruning.team import ALONE, Team
from grasp_deploy.pruning.units import UnitTable

Loss = Callable[[Tensor], Tensor]  # a model's mean loss over (B,) places of rows, in nats


class LearningState:
    """Values, optimiser moments, and the best values so far."""

    def __init__(self, start: Tensor, learning_rate: float) -> None:
        self.step = 0
        self.values = nn.Parameter(start)  # (n,) scores or scales
        self.optimizer = torch.optim.AdamW(
            [self.values], lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.best_values = start.clone()
        self.best_loss = math.inf

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, for saving."""
        tensors = {
            "step": torch.tensor(self.step),
            "values": self.values.detach(),
            "best_values": self.best_values,
            "best_loss": torch.tensor(self.best_loss, dtype=torch.float64),
        }
        adam = self.optimizer.state[self.values]  # empty before the first step
        return tensors | {f"adam_{name}": moment for name, moment in adam.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Return to a saved state; KeyError or RuntimeError if a tensor is missing or misshapen."""
        self.step = int(tensors["step"])
        self.best_loss = float(tensors["best_loss"])
        for name in ("values", "best_values"):
            getattr(self, name).copy_(tensors[name])
        if self.step:
            self.optimizer.state[self.values] = {
                "step": tensors["adam_step"],  # AdamW counts on the CPU
                "exp_avg": tensors["adam_exp_avg"].to(self.values.device),
                "exp_avg_sq": tensors["adam_exp_avg_sq"].to(self.values.device),
            }

    def consider(self, loss: float) -> None:
        """Keep the present values if none did better on the held-out sequences."""
        if loss < self.best_loss:
            self.best_loss = loss
            self.best_values = self.values.detach().clone()

    @property
    def chosen(self) -> Tensor:
        """`(n,)` values that the stage ends with: the best, or the last if none were measured."""
        return self.best_values if self.best_loss < math.inf else self.values.detach()


@dataclass(frozen=True)
class StepRecord:
    """Progress and loss of one step of a stage."""

    stage: str
    step: int  # steps done
    steps: int  # steps in all
    loss: float  # nats per token on the step's batch; by default a divergence
    heldout_loss: float | None  # of the values before this step, if measured and finite
    seconds: float
    mask: Tensor  # (N,) bool


def learn_scores(
    model: nn.Module,
    budget: Budget,
    schedule: Schedule,
    state: LearningState,
    loss: Loss,
    team: Team = ALONE,
    *,
    temperature: float,
    removed: Tensor | None = None,
) -> Iterator[StepRecord]:
    """Learn `(N,)` scores on a frozen model from `state.step` on; one record a step (algorithm 1).

    No mask holds a unit of the `(N,)` mask `removed`, nor does its score learn. Raises LossError if
    the loss is not finite.
    """

    def gates_at(_step: int | None) -> tuple[Tensor, Tensor]:
        values = state.values if removed is None else state.values.masked_fill(removed, -torch.inf)
        probabilities = torch.sigmoid(values / temperature)
        mask = project(probabilities.detach(), budget)
        mask = mask if removed is None else mask & ~removed
        return straight_through(probabilities, mask), mask

    with gated(model, budget.units) as gates:
        yield from descend("gates", model, gates.assign, gates_at, schedule, state, loss, team)


def text_loss(model: nn.Module, schedule: Schedule) -> Loss:
    """The next-token loss of the text itself, in nats per token."""
    return lambda places: language_loss(model, schedule.blocks.rows[places])


def learn_scales(
    model: nn.Module,
    units: UnitTable,
    mask: Tensor,
    schedule: Schedule,
    state: LearningState,
    loss: Loss,
    team: Team = ALONE,
) -> Iterator[StepRecord]:
    """Learn multipliers of the kept units, 1 at the start, while the `(N,)` mask is fixed (3.4).

    A gate is `m·scale`: removed units stay at 0 and get no gradient. Values behind the first `N`
    are those of `gates.scaled_norms`.
    """
    size = len(mask)
    kept = torch.ones_like(state.values)
    kept[:size] = mask

    def multipliers_at(_step: int | None) -> tuple[Tensor, Tensor]:
        return kept * state.values, mask

    with gated(model, units, all_learn=False) as gates, scaled_norms(model) as norms:

        def assign(values: Tensor) -> None:
            gates.assign(values[:size])
            norms.assign(values[size:])

        yield from descend("scales", model, assign, multipliers_at, schedule, state, loss, team)


def descend(
    stage: str,
    model: nn.Module,
    assign: Callable[[Tensor], None],
    values_at: Callable[[int | None], tuple[Tensor, Tensor]],
    schedule: Schedule,
    state: LearningState,
    loss: Loss,
    team: Team = ALONE,
) -> Iterator[StepRecord]:
    """Lower `loss` by gradient descent on `state.values`; yields a record for each step.

    `values_at(step)` gives the `(n,)` multipliers and the mask of a step; for None those to be
    measured. `assign` puts them into the model; all 1 leave it as it is.
    """
    is_half = next(model.parameters()).dtype == torch.float16

    def measure() -> float | None:
        assign(values_at(None)[0].detach())
        mean = mean_of(loss, schedule.blocks.heldout_places, schedule.batch_size, team)
        state.consider(mean)
        return mean if math.isfinite(mean) else None  # a file's record holds no other

    while state.step < schedule.steps:
        start = time.perf_counter()
        heldout_loss = measure() if schedule.is_check(state.step) else None
        values, mask = values_at(state.step)
        batch = schedule.batch(state.step)
        places, share = team.deal(batch)
        assign(values)
        tokens = len(batch) * schedule.blocks.train.shape[1]
        value = _backward(loss(places) * share, state, stage, tokens if is_half else 1, team)
        state.optimizer.param_groups[0]["lr"] = schedule.rate(state.step)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        seconds = time.perf_counter() - start
        yield StepRecord(stage, state.step, schedule.steps, value, heldout_loss, seconds, mask)
    if schedule.steps and schedule.is_check(schedule.steps):
        measure()


def _backward(loss: Tensor, state: LearningState, stage: str, factor: int, team: Team) -> float:
    """Give the `(n,)` values their gradient; return the loss over all processes.

    The loss is taken `factor` times as large: gradients of a mean over tokens can round to 0 in
    float16, those of their sum do not. Raises LossError if the loss or a gradient is not finite: a
    later loss, of masks alone, would not show it.
    """
    (loss * factor).backward()
    mean = loss.detach().float()
    assert state.values.grad is not None, "the gates stand in the path to the loss"
    team.add_up(state.values.grad, mean)
    value = finite(mean, stage, state.step)
    state.values.grad /= factor
    if not bool(state.values.grad.isfinite().all()):
        raise LossError(
            f"a gradient of the {stage} stage is not finite at step {state.step + 1}: {OVERFLOW}"
        )
    return value


def freeze(model: nn.Module, gradient_checkpointing: bool = False) -> None:
    """Stop all weights from taking gradients, and dropout: activations alone pass gradients on."""
    model.eval()
    model.requires_grad_(False)
    if gradient_checkpointing:
        recompute(model)


def recompute(model: nn.Module) -> None:
    """Compute a layer's activations again in the backward pass instead of keeping them."""
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    for layer in decoder_layers(model):
        layer.training = True  # the flag that checkpointing asks for; dropout stays off
