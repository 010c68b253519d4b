"""Learning the scores: one flat parameter, a frozen model, a projection at every step (3.3).

Each step projects the scores onto the budget, runs the model with the mask's gates, and sends the
loss's gradient straight through the mask to the scores. The loop is a generator: it yields a record
a step and leaves drawing and writing to its caller, and all that it must remember lies in a
`LearningState`, so that a run may stop after any step and go on from a saved state bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.gates import Gates, GateSite, decoder_layers, gated, straight_through
from grasp_deploy.pruning.learning_state import CalibrationBlocks, LearningState, Schedule
from grasp_deploy.pruning.objective import (
    OVERFLOW,
    LossError,
    distillation_loss,
    finite,
    language_loss,
    mean_loss,
)
from grasp_deploy.pruning.projection import Budget, project


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
    half = next(model.parameters()).dtype == torch.float16
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
        _backward(loss, state.values, times=ids[:, 1:].numel() if half else 1)
        loss_value = finite(loss, stage, state.step)
        _check_gradient(state.values, stage, state.step)
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


def _backward(loss: Tensor, values: Tensor, times: int) -> None:
    """Gradients of the `(N,)` values, through those of a loss so many times as large.

    A mean over tokens has gradients at each that float16 rounds to 0; their sum has not.
    """
    (loss * times).backward()
    if times != 1:
        assert values.grad is not None
        values.grad /= times


def _check_gradient(values: Tensor, stage: str, step: int) -> None:
    """LossError if a value would never be a number again; the loss, of masks, would not show it."""
    if values.grad is not None and not bool(values.grad.isfinite().all()):
        raise LossError(
            f"a gradient of the {stage} stage is not finite at step {step + 1}: {OVERFLOW}"
        )


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
