"""Choice of the mask among candidates with refitted output columns, and the scales of its units."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.objective import Objective
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.compression.stages import Stages
from grasp_deploy.pruning import training
from grasp_deploy.pruning.projection import project


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


def refit(frozen: FrozenModel, stages: Stages, objective: Objective, mask: Tensor) -> None:
    """Put the output columns of a `(N,)` mask into the model, refitted if that is better.

    Little text cannot tell many columns apart. Where refitting raises the objective on held-out
    text, columns stay the dense model's.
    """
    if frozen.run.config.compensation:
        make = partial(_refitted, frozen, stages, objective, mask)
        frozen.put(stages.once("compensation", make)[0])


def _refitted(
    frozen: FrozenModel, stages: Stages, objective: Objective, mask: Tensor
) -> StageResult:
    layers, fits = len(frozen.outputs.linears), []
    for fit in frozen.refit(mask, frozen.run.read_in("compensation")):
        fits.append(asdict(fit))
        stages.report("compensation", len(fits), layers)
    columns = frozen.outputs.extract(mask)
    if len(frozen.run.blocks.heldout):
        refitted = objective.heldout(mask)
        frozen.outputs.reset()
        if objective.heldout(mask) < refitted:
            columns, fits = frozen.outputs.extract(mask), []
    return {"mask": mask, **columns}, {"fits": fits}


def learn_scales(
    frozen: FrozenModel, stages: Stages, objective: Objective, mask: Tensor
) -> tuple[Tensor, Tensor | None]:
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

    def steps(state: training.LearningState) -> Iterator[training.StepRecord]:
        options = schedule, state, objective.over(schedule, state.step, mask), frozen.team
        return training.learn_scales(frozen.model, units, mask, *options)

    values = stages.learn("scales", start, schedule, steps, objective.name)
    return values[: len(mask)], values[len(mask) :].view(norms) if hidden else None


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
