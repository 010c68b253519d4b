"""Scores of all units: of pruning in rounds, or of the user's own method; then learnt from there.

First scores decide the mask by themselves, or are what gates are learnt from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.own_function import METHOD_CALL, own_values
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.config.option import assigned
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.criteria.batches import CalibrationText, OnBatch
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.progressive import below_all, by_rank, cut_round, per_cost
from grasp_deploy.pruning.training import LearningState, StepRecord, learn_scores

# In a walk, of the prunable cost: a round removes as much as one of a single run to keep 0.4.
REMOVED_IN_ALL_ROUNDS = 0.6


def initial_scores(frozen: FrozenModel) -> tuple[Tensor, Tensor | None]:
    """`(N,)` scores as the config asks for, and the `(N,)` mask that rounds reached by them."""
    config = frozen.run.config
    if not config.cuts_in_rounds:
        return frozen.once("start", partial(_own_scores, frozen))[0]["scores"], None
    made = _in_rounds(frozen)
    scores, mask = made["scores"], made["mask"]
    # Learning needs scores of a fixed range, whatever the size of the losses.
    return (by_rank(scores, frozen.run.budget) if config.learns else scores), mask


def _own_scores(frozen: FrozenModel) -> StageResult:
    """Scores of the user's `function(model, budget, text)`; InputError for what is no number."""
    run, config = frozen.run, frozen.run.config
    option, size = assigned(config, "method"), run.budget.units.size
    on_batch = partial(frozen.report, "criterion")
    text = CalibrationText(run.blocks.train, config.batch_size, on_batch, config.seed)
    scores = own_values(option, METHOD_CALL, size, frozen.model, run.budget, text)
    wrong = ~scores.float().isfinite()  # as the plan holds them
    if bool(wrong.any()):
        unit = int(wrong.nonzero()[0])
        raise InputError(
            f"{option} returned {float(scores[unit])} for unit {unit}: scores are finite numbers "
            "of float32, higher for units to keep"
        )
    return {"scores": scores.to(run.device)}, {}


def _in_rounds(frozen: FrozenModel) -> dict[str, Tensor]:
    """Scores and mask of iterative pruning; each round is saved, and a killed run goes on there."""
    began = time.perf_counter()
    reached = {"mask": torch.ones_like(frozen.run.budget.costs, dtype=torch.bool)}
    if frozen.before is not None:
        reached = {"mask": frozen.before.mask}
    done, seconds = 0, 0.0
    if frozen.workspace.has("start"):
        reached, record = frozen.recall("start")
        done, seconds = record["round"], record["seconds"]
    rounds = _rounds(frozen)
    for number in range(done + 1, rounds + 1):
        reached = _one_round(frozen, reached["mask"], number, rounds)
        record = {"round": number, "seconds": seconds + time.perf_counter() - began}
        frozen.workspace.save("start", reached, record)
    return frozen.recall("start")[0]


def _rounds(frozen: FrozenModel) -> int:
    """The rounds to the budget; in a walk as many as it takes to remove a fixed share in each."""
    config, budget = frozen.run.config, frozen.run.budget
    if not config.walks:
        return config.rounds
    start = budget.total_cost if frozen.before is None else frozen.before.limit
    share = REMOVED_IN_ALL_ROUNDS / config.rounds
    return max(1, math.ceil((start - budget.limit) / budget.total_cost / share - 1e-9))


def _one_round(frozen: FrozenModel, mask: Tensor, number: int, rounds: int) -> dict[str, Tensor]:
    """Scores, mask and refitted columns of a round, given the mask of the one before.

    Without learning, the last round refits no columns: the refit on more text comes next.
    """
    config, sequences = frozen.run.config, frozen.run.criterion_sequences
    steps = len(sequences) + len(frozen.outputs.linears) * config.compensation

    def report(step: int) -> None:
        frozen.report("rounds", (number - 1) * steps + step, rounds * steps)

    with frozen.gated(mask.float()):
        scores = _losses(frozen, lambda batch, batches: report(len(sequences) * batch // batches))
    start_cost = None if frozen.before is None else frozen.before.limit
    scores, mask = cut_round(frozen.run.budget, mask, scores, number, rounds, start_cost)
    columns = {}
    if config.compensation and (config.learns or number < rounds):
        for step, _ in enumerate(frozen.refit(mask, sequences), start=1):
            report(len(sequences) + step)
        columns = frozen.outputs.extract(mask)
    report(steps)
    return {"scores": scores, "mask": mask, **columns}


def _losses(frozen: FrozenModel, on_batch: OnBatch) -> Tensor:
    """`(N,)` float32 losses of removing a unit from the model as it is, per cost."""
    run = frozen.run
    text = CalibrationText(run.criterion_sequences, run.config.batch_size, on_batch)
    costs = run.budget.costs  # what costs nothing always stays
    scores = obs_scores(frozen.model, run.budget.units, text, removable=costs > 0)
    return per_cost(scores.to(run.device).float(), costs)


def learn_gates(frozen: FrozenModel, start: Tensor) -> Tensor:
    """`(N,)` scores learnt from `start`; `start` itself for a method that does not learn."""
    if not frozen.run.config.learns:
        return start
    learnt = frozen.learn("gates", start, frozen.run.gate_schedule, partial(gate_steps, frozen))
    return learnt if frozen.before is None else below_all(learnt, ~frozen.before.mask)


def gate_steps(frozen: FrozenModel, state: LearningState) -> Iterator[StepRecord]:
    """Steps of learning the `(N,)` scores of a state, each projected onto the budget."""
    run, config = frozen.run, frozen.run.config
    return learn_scores(
        frozen.model,
        run.budget,
        run.gate_schedule,
        state,
        temperature=config.temperature,
    )
