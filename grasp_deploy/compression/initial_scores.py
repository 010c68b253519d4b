"""Initial scores: of a criterion, of iterative pruning in rounds, or equal for all units.

They decide the mask by themselves, or are what gates are learnt from.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel, StageResult
from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.criteria.batches import CalibrationText, OnBatch
from grasp_deploy.pruning.criteria.criterion import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.moments import outlier_ratios
from grasp_deploy.pruning.progressive import cut_in_rounds


@dataclass(frozen=True)
class InitialScores:
    """Scores to rank units by, and the mask that rounds have already reached with them."""

    scores: Tensor  # (N,)
    mask: Tensor | None = None  # (N,) bool


def initial_scores(frozen: FrozenModel) -> InitialScores:
    """Scores as the config asks for; made once, since they take minutes."""
    run, config = frozen.run, frozen.run.config
    if config.first_scores == "equal":
        return InitialScores(torch.zeros(run.budget.units.size, device=run.device))
    if config.cuts_in_rounds:
        initial = prune_in_rounds(frozen)
    else:
        initial = _one_shot(frozen, config.first_scores)
    if not config.learns:
        return initial
    # Learning needs scores of a fixed range, whatever the criterion's unit.
    return replace(initial, scores=by_rank(initial.scores, run.budget))


def _one_shot(frozen: FrozenModel, criterion: str) -> InitialScores:
    run, config = frozen.run, frozen.run.config

    def compute() -> StageResult:
        scores = _criterion_scores(
            frozen,
            criterion,
            lambda step, steps: frozen.on_progress(
                {"stage": "criterion", "step": step, "steps": steps}
            ),
        )
        ratios = None
        if config.allocation == "owl":
            text = CalibrationText(run.criterion_sequences, config.batch_size)
            ratios = outlier_ratios(frozen.model, text)
        return StageResult({"scores": allocate(config.allocation, scores, run.budget, ratios)})

    return InitialScores(frozen.once("start", ("scores",), compute).vectors["scores"])


def prune_in_rounds(frozen: FrozenModel) -> InitialScores:
    """Scores and mask of iterative pruning; each round is saved, and a killed run goes on there.

    Columns are refitted behind every round but, without learning, the last: the refit on more
    text comes next.
    """
    run, config = frozen.run, frozen.run.config
    began = time.perf_counter()
    saved = frozen.recall("rounds", "scores", "mask")
    done, before = (saved.record["round"], saved.record["seconds"]) if saved else (0, 0.0)
    sequences = run.criterion_sequences
    per_round = len(sequences) + len(frozen.outputs.linears) * config.compensation

    def report(step: int) -> None:
        steps = config.rounds * per_round
        frozen.on_progress({"stage": "rounds", "step": done * per_round + step, "steps": steps})

    def score(mask: Tensor) -> Tensor:
        with frozen.gated(mask.float()):
            return _criterion_scores(
                frozen,
                config.round_criterion,
                lambda batch, batches: report(len(sequences) * batch // batches),
            )

    def refits() -> bool:
        return config.compensation and (config.learns or done + 1 < config.rounds)

    def refit(mask: Tensor) -> None:
        if refits():
            for number, _ in enumerate(frozen.refit(mask, sequences), start=1):
                report(len(sequences) + number)

    reached = saved.vectors["mask"] if saved else None
    for scores, mask in cut_in_rounds(
        run.budget, config.rounds, score, refit, done=done, mask=reached
    ):
        columns = frozen.outputs.extract(mask) if refits() else {}
        done += 1
        report(0)
        saved = StageResult({"scores": scores, "mask": mask}, columns, {"round": done})
        frozen.save("rounds", saved, before + time.perf_counter() - began)
    assert saved is not None, "there is at least one round"
    frozen.seconds["start"] = float(saved.record["seconds"])
    return InitialScores(saved.vectors["scores"], saved.vectors["mask"])


def _criterion_scores(frozen: FrozenModel, name: str, on_batch: OnBatch) -> Tensor:
    """`(N,)` scores of a criterion on the model as it is, per cost where those compare."""
    run, config = frozen.run, frozen.run.config
    scores = criterion_scores(
        name,
        frozen.model,
        run.budget.units,
        CalibrationText(run.criterion_sequences, config.batch_size, on_batch),
        seed=config.seed,
        removable=run.budget.costs > 0,  # what costs nothing always stays
    )
    if name in ADDITIVE and (config.learns or run.ranks_per_cost):
        scores = per_cost(scores, run.budget.costs)
    return scores
