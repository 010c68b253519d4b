"""The learnt gates: one score per unit, projected onto the budget at every step (section 3.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel, OnStep, StageResult
from grasp_deploy.pruning.projection import Ranking
from grasp_deploy.pruning.swaps import groups_near_the_cut, try_swaps
from grasp_deploy.pruning.training import learn_scores


def learn_gates(
    frozen: FrozenModel, start: Tensor, on_step: OnStep = lambda step, scores: None
) -> Tensor:
    """`(N,)` scores learnt from `start`; `start` itself for a method that does not learn."""
    run, config = frozen.run, frozen.run.config
    if not config.learns:
        return start
    schedule = run.gate_schedule
    return frozen.learn(
        "gates",
        start,
        schedule,
        lambda state: learn_scores(
            frozen.model,
            run.budget,
            schedule,
            state,
            temperature=config.temperature,
            per_cost=run.ranks_per_cost,
            noisy=config.method == "gumbel-topk",
            site=config.gate_site,
        ),
        on_step,
    )


def ranking_of(frozen: FrozenModel, scores: Tensor) -> Ranking:
    """Ranking of `(N,)` scores, with the mask that they keep under the budget."""
    run = frozen.run
    if not run.config.learns:  # a criterion's scores have any size: a sigmoid would saturate
        return Ranking(scores, run.budget)
    return Ranking.of_scores(scores, run.budget, run.config.temperature, run.ranks_per_cost)


def candidate_masks(
    frozen: FrozenModel, scores: Tensor, reached: Tensor | None
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Distinct `(N,)` masks for the held-out text to choose from, and the swaps in the first.

    They are the scores' own mask after swaps at its cut, that mask before them, and the one that
    rounds had already `reached`.
    """
    if reached is not None and not frozen.run.config.learns:
        return [reached], []
    ranking = ranking_of(frozen, scores)
    swapped = ranking.mask
    swaps: list[dict[str, Any]] = []
    if frozen.run.config.swap_groups:
        swapped, swaps = _swap_groups(frozen, ranking)
    distinct: list[Tensor] = []
    for mask in (swapped, ranking.mask, reached):
        if mask is not None and not any(torch.equal(mask, other) for other in distinct):
            distinct.append(mask)
    return distinct, swaps


def _swap_groups(frozen: FrozenModel, ranking: Ranking) -> tuple[Tensor, list[dict[str, Any]]]:
    """`(N,)` mask after the swaps of KV groups that lower the held-out loss, and those swaps."""

    def compute() -> StageResult:
        mask, accepted = ranking.mask, []
        groups = groups_near_the_cut(ranking, frozen.run.config.swap_groups)
        swaps = try_swaps(ranking, groups, frozen.mask_loss)
        for step, swap in enumerate(swaps, start=1):
            mask = swap.mask
            if swap.accepted:
                accepted.append({"unit": swap.unit, "keeps": swap.keeps, "heldout_loss": swap.loss})
            frozen.on_progress({"stage": "swaps", "step": step, "steps": len(groups)})
        return StageResult({"mask": mask}, record={"accepted": accepted})

    result = frozen.once("swaps", ("mask",), compute)
    return result.vectors["mask"], result.record["accepted"]
