"""Choice of the mask among candidates with refitted output columns, and the scales of its units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.pruning import training
from grasp_deploy.pruning.projection import Ranking


def ranking_of(frozen: FrozenModel, scores: Tensor) -> Ranking:
    """Ranking of `(N,)` scores, with the mask that they keep under the budget."""
    run = frozen.run
    if not run.config.learns:  # a criterion's scores have any size: a sigmoid would saturate
        return Ranking(scores, run.budget)
    return Ranking.of_scores(scores, run.budget, run.config.temperature, run.ranks_per_cost)


def candidate_masks(frozen: FrozenModel, scores: Tensor, reached: Tensor | None) -> list[Tensor]:
    """Distinct `(N,)` masks: of the scores, and what rounds `reached`."""
    if reached is not None and not frozen.run.config.learns:
        return [reached]
    ranking = ranking_of(frozen, scores)
    learnt = ranking.mask if frozen.before is None else ranking.mask & frozen.before.mask
    return [learnt] if reached is None or torch.equal(learnt, reached) else [learnt, reached]


def refit_best(frozen: FrozenModel, masks: list[Tensor]) -> Tensor:
    """The `(N,)` mask with the lowest held-out loss, its output columns put into the model.

    Little text cannot tell many columns apart. Where refitting raises the held-out loss of a mask,
    its columns stay the dense model's. Without held-out sequences the first mask is refitted.
    """
    if not len(frozen.run.blocks.heldout):
        masks = masks[:1]
    if not frozen.run.config.compensation:
        return masks[0] if len(masks) == 1 else min(masks, key=frozen.mask_loss)

    def best() -> StageResult:
        return min(_refitted(frozen, masks), key=lambda candidate: candidate[0])[1]

    return frozen.once("compensation", best)[0]["mask"]


def _refitted(frozen: FrozenModel, masks: list[Tensor]) -> Iterator[tuple[float, StageResult]]:
    """Held-out losses and results, two for each mask: refitted columns first, then the dense ones.

    The dense ones must win strictly.
    """
    layers = len(frozen.outputs.linears)
    sequences = frozen.run.compensation_sequences

    def candidate(mask: Tensor, fits: list[dict[str, object]]) -> tuple[float, StageResult]:
        columns = frozen.outputs.extract(mask)
        return frozen.mask_loss(mask), ({"mask": mask, **columns}, {"fits": fits})

    for number, mask in enumerate(masks):
        fits = []
        for fit in frozen.refit(mask, sequences):
            fits.append(asdict(fit))
            frozen.report("compensation", number * layers + len(fits), len(masks) * layers)
        yield candidate(mask, fits)
        if len(frozen.run.blocks.heldout):
            frozen.outputs.reset()
            yield candidate(mask, [])


def learn_scales(frozen: FrozenModel, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """`(N,)` scales of a `(N,)` mask, and `(2L + 1, d)` scales of the norms, if those are learnt.

    All are 1 at the start, and stay 1 wherever a unit is removed. Those of a larger budget are no
    start for a member of a family: each pass over the same text would fit it closer, and no other.
    """
    run, schedule, config = frozen.run, frozen.run.scale_schedule, frozen.run.config
    norms = (2 * run.budget.units.layers + 1, frozen.model.config.hidden_size)
    hidden = math.prod(norms) if config.norm_scales and config.scale_epochs else 0
    start = torch.ones(len(mask) + hidden, device=run.device)
    values = frozen.learn(
        "scales",
        start,
        schedule,
        lambda state: training.learn_scales(
            frozen.model,
            run.budget.units,
            mask,
            schedule,
            state,
            frozen.dense_logits if config.objective == "distillation" else None,
        ),
    )
    return values[: len(mask)], values[len(mask) :].view(norms) if hidden else None


def fold_scales(frozen: FrozenModel, mask: Tensor, scales: Tensor) -> dict[str, Path]:
    """Fold the scales into the refitted tensors and save them; returns the file of each."""
    if not frozen.records.get("compensation", {}).get("fits"):
        return {}
    outputs, tensors = frozen.outputs, {}
    columns = outputs.columns(mask.cpu())
    of_segment = scales.cpu().split(frozen.run.budget.units.segment_sizes)
    for (name, kept), of_units in zip(outputs.extract(mask).items(), of_segment, strict=True):
        width = outputs.linears[name].in_features // len(of_units)  # 1, or G·D
        tensors[name] = kept.float() * of_units.repeat_interleave(width)[columns[name]]
    path = frozen.workspace.save("fitted", tensors, {})
    return dict.fromkeys(tensors, path)
