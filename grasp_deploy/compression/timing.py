"""One correction of a budget in time, by a measurement of the mask that the prices chose.

Times of layers do not add up exactly. So the shape of the mask is timed before its columns are
refitted; where it misses, the limit moves by as much, and the scores are projected once more. A
measurement that would put the limit out of reach moves nothing, and the record says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import pruned_layers
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.mask import ranking_of
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.compression.time_budget import Correction, TimeBudget, phase_of
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project

FIRST, LAST = "timing", "timing-again"  # stages
Measure = Callable[[ModelShape], list[float]]  # seconds of a shape, one for each repetition


def correct_limit(
    frozen: FrozenModel, initial: Tensor, scores: Tensor, reached: Tensor | None, measure: Measure
) -> Tensor | None:
    """Time the mask of `(N,)` scores and move the run's limit if it misses what was asked.

    `initial` are the scores before gates, and `reached` the `(N,)` mask of rounds, which is
    returned: as it was, or that of `initial` under the new limit.
    """
    run, time = frozen.run, frozen.run.time
    assert time is not None, "the cost is a time"
    mask = reached
    if mask is None or run.config.learns:
        mask = ranking_of(frozen, scores).mask
    _, first = frozen.once(FIRST, partial(_timed, frozen, mask, measure))
    corrected = _correction(time, run.budget, first).budget
    if corrected is None:
        return reached
    frozen.run = replace(run, budget=corrected)
    return None if reached is None else project(initial, corrected)


def time_record(frozen: FrozenModel, mask: Tensor, measure: Measure | None) -> dict[str, Any]:
    """Seconds asked for, predicted and measured of the final `(N,)` mask, and of the first one.

    Without `measure` the prediction stands alone. `first` is None unless the limit was moved, and
    `correction_left_out` unless it should have been and could not; then it says why.
    """
    config, time = frozen.run.config, frozen.run.time
    assert time is not None, "the cost is a time"
    record = {
        "phase": phase_of(config),
        "batch": config.batch,
        "context": config.context,
        "dense_seconds": time.price.dense_seconds,
        "asked_seconds": time.asked_seconds,
        "predicted_seconds": _predicted(frozen, mask),
    }
    if measure is None:
        return record
    _, first = frozen.recall(FIRST)
    _, last = frozen.once(LAST, partial(_timed, frozen, mask, measure))
    correction = _correction(time, frozen.run.budget, first)
    return {
        **record,
        **_seconds(last),
        "first": _seconds(first) if correction.budget else None,
        "correction_left_out": correction.left_out,
    }


def _correction(time: TimeBudget, budget: Budget, first: dict[str, Any]) -> Correction:
    return time.correction(budget, first["predicted_seconds"], first["repetition_seconds"])


def _seconds(record: dict[str, Any]) -> dict[str, Any]:
    names = ("predicted_seconds", "measured_seconds", "repetition_seconds")
    return {name: record[name] for name in names}


def _timed(frozen: FrozenModel, mask: Tensor, measure: Measure) -> StageResult:
    run = frozen.run
    layers = pruned_layers(run.base.shape, run.budget.units.kept_per_layer(mask))
    repetitions = measure(replace(run.base.shape, layers=layers, pruned=True))
    return {"mask": mask}, {
        "predicted_seconds": _predicted(frozen, mask),
        "measured_seconds": statistics.median(repetitions),
        "repetition_seconds": repetitions,
    }


def _predicted(frozen: FrozenModel, mask: Tensor) -> float:
    time, budget = frozen.run.time, frozen.run.budget
    assert time is not None, "the cost is a time"
    return time.seconds(budget.cost_of(mask), budget.total_cost)
