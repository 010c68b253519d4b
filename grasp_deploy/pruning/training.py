"""Learning scores (3.3) or scales (3.4): one flat parameter on a frozen model.

Each step of the scores projects them onto the budget and runs the model with the mask's gates. The
loss's gradient goes straight through the mask to the scores. The loop is a generator: it yields a
record per step and leaves drawing and writing to its caller. All that it keeps lies in a
`LearningState`, so a run may stop after any step and continue from a saved state bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.gates import Gates, GateSite, gated, straight_through
from grasp_deploy.pruning.layout import decoder_layers
from grasp_deploy.pruning.learning_state import LearningState
from grasp_deploy.pruning.objective import (
    OVERFLOW,
    LossError,
    distillation_loss,
    finite,
    language_loss,
    mean_loss,
)
from grasp_deploy.pruning.ranking import Ranking
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class StepRecord:
    """Progress and loss of one step of a stage."""

    stage: str
    step: int  # steps done
    steps: int  # steps in all
    loss: float  # nats per token on the step's batch
    heldout_loss: float | None  # of the values before this step, where they were measured
    seconds: float
    mask: Tensor  # (N,) bool


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

    With `noisy` each step ranks the scores with new Gumbel noise added to `score / temperature`
    (the paper's Gumbel-TopK gating); masks are measured and chosen without it. `site` is where the
    gates of KV groups stand.

    Raises LossError if the loss is not finite.
    """

    def gates_at(step: int | None) -> tuple[Tensor, Tensor]:
        scores: Tensor = state.values
        if noisy and step is not None:
            scores = scores + temperature * gumbel_noise(scores, schedule.seed, step)
        mask = Ranking.of_scores(scores.detach(), budget, temperature, per_cost).mask
        return straight_through(torch.sigmoid(scores / temperature), mask), mask

    with gated(model, budget.units, group_width, site) as gates:
        yield from descend("gates", model, gates, gates_at, blocks, schedule, state)


def learn_scales(
    model: nn.Module,
    units: UnitTable,
    group_width: int,
    mask: Tensor,
    blocks: CalibrationBlocks,
    schedule: Schedule,
    state: LearningState,
) -> Iterator[StepRecord]:
    """Learn `(N,)` multipliers of the kept units, 1 at the start, while the mask is fixed (3.4).

    A gate is `m·scale`: removed units stay at 0 and get no gradient. Raises LossError if the loss
    is not finite.
    """
    kept = mask.to(state.values.dtype)
    with gated(model, units, group_width) as gates:
        yield from descend(
            "scales", model, gates, lambda _: (kept * state.values, mask), blocks, schedule, state
        )


def descend(
    stage: str,
    model: nn.Module,
    gates: Gates,
    gates_at: Callable[[int | None], tuple[Tensor, Tensor]],
    blocks: CalibrationBlocks,
    schedule: Schedule,
    state: LearningState,
) -> Iterator[StepRecord]:
    """Steps of gradient descent on `state.values`.

    `gates_at(step)` gives the `(N,)` gates and mask of a step; for None those to be measured.
    """
    device = state.values.device
    is_half = next(model.parameters()).dtype == torch.float16
    total = schedule.steps(blocks)

    def measure() -> float:
        gates.assign(gates_at(None)[0].detach())
        loss = mean_loss(model, blocks.heldout, schedule.batch_size)
        state.consider(loss)
        return loss

    while state.step < total:
        start = time.perf_counter()
        heldout_loss = measure() if schedule.is_check(blocks, state.step) else None
        values, mask = gates_at(state.step)
        ids = schedule.batch(blocks, state.step).to(device)
        loss = _step_loss(model, gates, values, ids, schedule.distil)
        _backward(loss, state.values, factor=ids[:, 1:].numel() if is_half else 1)
        loss_value = finite(loss, stage, state.step)
        _check_gradient(state.values, stage, state.step)
        state.optimizer.param_groups[0]["lr"] = schedule.rate(blocks, state.step)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        if schedule.is_averaged(blocks, state.step):
            state.average()
        seconds = time.perf_counter() - start
        yield StepRecord(stage, state.step, total, loss_value, heldout_loss, seconds, mask)
    if total and schedule.is_check(blocks, total):
        measure()


def _backward(loss: Tensor, values: Tensor, factor: int) -> None:
    """Compute gradients of the `(N,)` values by way of a loss `factor` times as large.

    The gradients of a mean over tokens can round to 0 in float16; those of their sum do not.
    """
    (loss * factor).backward()
    if factor != 1:
        assert values.grad is not None
        values.grad /= factor


def _check_gradient(values: Tensor, stage: str, step: int) -> None:
    """LossError if a gradient is not finite: a later loss, of masks alone, would not show it."""
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
    """Stop all weights from taking gradients, and dropout: activations alone pass gradients on."""
    model.eval()
    model.requires_grad_(False)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        for layer in decoder_layers(model):
            layer.training = True  # the flag that checkpointing asks for; dropout stays off
