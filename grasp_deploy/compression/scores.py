"""Scores of all units: of pruning in rounds, or of the user's own method; then learnt from there.

First scores decide the mask by themselves, or are what gates are learnt from.
"""

import time
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.objective import Objective
from grasp_deploy.compression.own_function import METHOD_CALL, own_values
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.compression.stages import OWN_METHOD, Stages
from grasp_deploy.config.option import assigned
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.progressive import below_all, by_rank, cut_round, per_cost
from grasp_deploy.pruning.training import LearningState, StepRecord, learn_scores


def initial_scores(frozen: FrozenModel, stages: Stages) -> tuple[Tensor, Tensor | None]:
    """`(N,)` scores as the config asks for, and the `(N,)` mask that rounds reached by them."""
    config = frozen.run.config
    if not config.cuts_in_rounds:
        made = frozen.put(stages.once("start", partial(_own_scores, frozen, stages))[0])
        return made["scores"], None
    made = _in_rounds(frozen, stages)
    scores, mask = made["scores"], made["mask"]
    # Learning needs scores of a fixed range, whatever the size of the losses.
    return (by_rank(scores, frozen.run.budget) if config.learns else scores), mask


def _own_scores(frozen: FrozenModel, stages: Stages) -> StageResult:
    """Scores of the user's `function(model, budget, text)`; InputError for what is no number."""
    run, config = frozen.run, frozen.run.config
    option, size = assigned(config, "method"), run.budget.units.size
    on_batch = partial(stages.report, OWN_METHOD)
    # Copies: what a function does to them is not done to the run.
    budget, sequences = deepcopy(run.budget), run.blocks.train.clone()
    text = CalibrationText(sequences, config.batch_size, on_batch, config.seed)
    scores = own_values(option, METHOD_CALL, size, frozen.model, budget, text)
    wrong = ~scores.float().isfinite()  # as the plan holds them
    if bool(wrong.any()):
        unit = int(wrong.nonzero()[0])
        raise InputError(
            f"{option} returned {float(scores[unit])} for unit {unit}: scores are finite numbers "
            "of float32, higher for units to keep"
        )
    return {"scores": scores.to(run.device)}, {}


def _in_rounds(frozen: FrozenModel, stages: Stages) -> dict[str, Tensor]:
    """Scores and mask of iterative pruning; each round is saved, and a killed run goes on there."""
    began = time.perf_counter()
    run, done, seconds = frozen.run, 0, 0.0
    if stages.workspace.has("start"):
        tensors, record = stages.recall("start")
        reached, done, seconds = frozen.put(tensors), record["round"], record["seconds"]
    elif run.start.mask is None:
        reached = {"mask": torch.ones_like(run.budget.costs, dtype=torch.bool)}
    else:  # that of a larger budget, whose columns are solved first
        reached = {"mask": run.start.mask}
        if run.config.compensation:
            deque(frozen.refit(run.start.mask, run.read_in("criterion")), maxlen=0)
    for number in range(done + 1, run.rounds + 1):
        reached = _one_round(frozen, stages, reached["mask"], number)
        record = {"round": number, "seconds": seconds + time.perf_counter() - began}
        stages.workspace.save("start", reached, record)
    return frozen.put(stages.recall("start")[0])


def _one_round(frozen: FrozenModel, stages: Stages, mask: Tensor, number: int) -> dict[str, Tensor]:
    """Scores, mask and refitted columns of a round, given the mask of the one before.

    Without learning, the last round refits no columns: the refit on more text comes next.
    """
    run, config, rounds = frozen.run, frozen.run.config, frozen.run.rounds
    sequences = run.read_in("criterion")
    steps = len(sequences) + len(frozen.outputs.linears) * config.compensation

    def report(step: int) -> None:
        stages.report("rounds", (number - 1) * steps + step, rounds * steps)

    def scored(batch: int, batches: int) -> None:
        report(len(sequences) * batch // batches)

    costs = run.budget.costs  # what costs nothing always stays
    text = CalibrationText(sequences, config.batch_size, scored, team=frozen.team)
    with frozen.gated(mask.float()):
        losses = obs_scores(frozen.model, run.budget.units, text, removable=costs > 0)
    scores = per_cost(losses.to(run.device).float(), costs)
    scores, mask = cut_round(run.budget, mask, scores, number, rounds, run.start_cost)
    columns = {}
    if config.compensation and (config.learns or number < rounds):
        for step, _ in enumerate(frozen.refit(mask, sequences), start=1):
            report(len(sequences) + step)
        columns = frozen.outputs.extract(mask)
    report(steps)
    return {"scores": scores, "mask": mask, **columns}


def learn_gates(
    frozen: FrozenModel, stages: Stages, objective: Objective, start: Tensor, reached: Tensor | None
) -> Tensor:
    """`(N,)` scores learnt from `start`; `start` itself for a method that does not learn.

    The columns of the `(N,)` mask that rounds `reached` are in the model.
    """
    run, schedule, temperature = frozen.run, frozen.run.gate_schedule, frozen.run.config.temperature
    if reached is None or not run.config.learns:
        return start
    removed = None if run.start.mask is None else ~run.start.mask

    def steps(state: LearningState) -> Iterator[StepRecord]:
        options = schedule, state, objective.over(schedule, state.step, reached), frozen.team
        learn = partial(learn_scores, temperature=temperature, removed=removed)
        return learn(frozen.model, run.budget, *options)

    learnt = stages.learn("gates", start, schedule, steps, objective.name)
    return learnt if removed is None else below_all(learnt, removed)
