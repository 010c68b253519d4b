"""Choice of the mask among candidates with refitted output columns, and the scales of its units."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.compression.stages import PREDICTIONS, Stages
from grasp_deploy.pruning import training
from grasp_deploy.pruning.distilling import DensePredictions
from grasp_deploy.pruning.projection import project

SOLVED = "compensation-so-far"  # the file of layers that are solved


def final_mask(frozen: FrozenModel, scores: Tensor, reached: Tensor | None) -> Tensor:
    """The `(N,)` mask of learnt scores under the budget, or else what rounds `reached`.

    Learnt scores start from those of the rounds, and held-out text has compared the masks of both.
    They rank by keep probability; others have any size, and a sigmoid would saturate.
    """
    run = frozen.run
    if run.config.learns:
        scores = torch.sigmoid(scores / run.config.temperature)
    elif reached is not None:
        return reached
    mask = project(scores, run.budget)
    return mask if run.start.mask is None else mask & run.start.mask


def refit(frozen: FrozenModel, stages: Stages, mask: Tensor) -> None:
    """Put the output columns of a `(N,)` mask into the model, refitted if that lowers its loss.

    Little text cannot tell many columns apart. Where refitting raises the held-out loss, columns
    stay the dense model's.
    """
    if frozen.run.config.compensation:
        frozen.put(stages.once("compensation", partial(_refitted, frozen, stages, mask))[0])


def _refitted(frozen: FrozenModel, stages: Stages, mask: Tensor) -> StageResult:
    layers, workspace, saved_at = len(frozen.outputs.linears), stages.workspace, time.monotonic()
    solved: dict[str, Tensor] = {}
    fits: list[dict[str, Any]] = []
    if workspace.has(SOLVED):
        solved, record = workspace.load(SOLVED)
        fits = record["fits"]
    for fit in frozen.refit(mask, frozen.run.read_in("compensation"), solved):
        fits.append(asdict(fit))
        if stages.must_save(saved_at):
            names = [f"model.layers.{each['layer']}.{each['linear']}.weight" for each in fits]
            columns = frozen.outputs.extract(mask)
            workspace.save(SOLVED, {name: columns[name] for name in names}, {"fits": fits})
            saved_at = time.monotonic()
        stages.report("compensation", len(fits), layers)
    columns = frozen.outputs.extract(mask)
    if len(frozen.run.blocks.heldout):
        loss = frozen.mask_loss(mask)
        frozen.outputs.reset()
        if frozen.mask_loss(mask) < loss:
            columns, fits = frozen.outputs.extract(mask), []
    return {"mask": mask, **columns}, {"fits": fits}


def learn_scales(frozen: FrozenModel, stages: Stages, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """`(N,)` scales of a `(N,)` mask, and `(2L + 1, d)` scales of the norms, if those are learnt.

    All are 1 at the start, and stay 1 wherever a unit is removed.
    """
    run, schedule, config = frozen.run, frozen.run.scale_schedule, frozen.run.config
    if not config.scale_epochs:
        return torch.ones(len(mask), device=run.device), None
    units = run.budget.units
    norms = (2 * units.layers + 1, frozen.model.config.hidden_size)
    hidden = math.prod(norms) * config.norm_scales
    start = torch.ones(len(mask) + hidden, device=run.device)
    is_text = config.scale_target == "text"

    def steps(state: training.LearningState) -> Iterator[training.StepRecord]:
        if is_text:
            loss = training.text_loss(frozen.model, schedule)
        else:
            loss = _predictions(frozen, stages, mask, state.step).divergence
        options = schedule, state, loss, frozen.team
        return training.learn_scales(frozen.model, units, mask, *options)

    values = stages.learn("scales", start, schedule, steps, "loss" if is_text else "divergence")
    return values[: len(mask)], values[len(mask) :].view(norms) if hidden else None


def _predictions(frozen: FrozenModel, stages: Stages, mask: Tensor, step: int) -> DensePredictions:
    """What the dense model makes of the text that scales are yet to learn from, from a step on."""
    schedule = frozen.run.scale_schedule
    predictions = DensePredictions(frozen.model, schedule.blocks.rows, frozen.team)
    batches = schedule.batches(step, frozen.team.size)
    with frozen.as_dense(mask):
        for done, batch in enumerate(batches, start=1):
            predictions.read(batch)
            stages.report(PREDICTIONS, done, len(batches))
    return predictions


def fold_scales(
    frozen: FrozenModel, stages: Stages, mask: Tensor, scales: Tensor
) -> dict[str, Path]:
    """Fold the scales into the refitted tensors and save them; returns the file of each."""
    if not stages.records.get("compensation", {}).get("fits"):
        return {}
    outputs, tensors = frozen.outputs, {}
    columns = outputs.columns(mask.cpu())
    of_segment = scales.cpu().split(frozen.run.budget.units.segment_sizes)
    for name, kept in outputs.extract(mask).items():
        of_units = of_segment[outputs.segments[name]]
        width = outputs.linears[name].in_features // len(of_units)  # 1, or G·D
        tensors[name] = kept.float() * of_units.repeat_interleave(width)[columns[name]]
    path = stages.workspace.save("fitted", tensors, {})
    return dict.fromkeys(tensors, path)
