"""Initial scores: of a criterion, of iterative pruning in rounds, or equal for all units.

They decide the mask by themselves, or are what gates are learnt from.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.resume import StageResult
from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.criteria import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.progressive import cut_in_rounds


def initial_scores(frozen: FrozenModel) -> tuple[Tensor, Tensor | None]:
    """`(N,)` scores as the config asks for, and the `(N,)` mask that rounds have reached by them.

    Made once, since they take minutes.
    """
    run, config = frozen.run, frozen.run.config
    if config.first_scores == "equal":
        return torch.zeros(run.budget.units.size, device=run.device), None
    if config.cuts_in_rounds:
        made = prune_in_rounds(frozen)
    else:
        made, _ = frozen.once("start", partial(_one_shot, frozen))
    scores, mask = made["scores"], made.get("mask")
    # Learning needs scores of a fixed range, whatever the criterion's unit.
    return (by_rank(scores, run.budget) if config.learns else scores), mask


def _one_shot(frozen: FrozenModel) -> StageResult:
    run, config = frozen.run, frozen.run.config
    on_batch = partial(frozen.report, "criterion")
    scores = _criterion_scores(frozen, config.first_scores, on_batch)
    ratios = None
    if config.allocation == "owl":
        ratios = outlier_ratios(frozen.model, run.criterion_sequences, config.batch_size)
    return {"scores": allocate(config.allocation, scores, run.budget, ratios)}, {}


def prune_in_rounds(frozen: FrozenModel) -> dict[str, Tensor]:
    """Scores and mask of iterative pruning; each round is saved, and a killed run goes on there.

    Columns are refitted behind every round but, without learning, the last: the refit on more
    text comes next.
    """
    run, config = frozen.run, frozen.run.config
    began = time.perf_counter()
    reached: dict[str, Tensor] = {}
    done, seconds = 0, 0.0
    if frozen.workspace.has("start"):
        reached, record = frozen.recall("start")
        done, seconds = record["round"], record["seconds"]
    sequences = run.criterion_sequences
    refits = config.rounds if config.learns else config.rounds - 1
    per_round = len(sequences) + len(frozen.outputs.linears) * config.compensation

    def report(step: int) -> None:
        frozen.report("rounds", done * per_round + step, config.rounds * per_round)

    def score(mask: Tensor) -> Tensor:
        with frozen.gated(mask.float()):
            return _criterion_scores(
                frozen,
                config.round_criterion,
                lambda batch, batches: report(len(sequences) * batch // batches),
            )

    def refit(mask: Tensor) -> None:
        if config.compensation and done < refits:
            for number, _ in enumerate(frozen.refit(mask, sequences), start=1):
                report(len(sequences) + number)

    for scores, mask in cut_in_rounds(
        run.budget, config.rounds, score, refit, done=done, mask=reached.get("mask")
    ):
        columns = frozen.outputs.extract(mask) if config.compensation and done < refits else {}
        reached = {"scores": scores, "mask": mask}
        done += 1
        report(0)
        record = {"round": done, "seconds": seconds + time.perf_counter() - began}
        frozen.workspace.save("start", {**reached, **columns}, record)
        frozen.records["start"] = record
    return reached


def _criterion_scores(frozen: FrozenModel, name: str, on_batch: OnBatch) -> Tensor:
    """`(N,)` scores of a criterion on the model as it is, per cost where those compare."""
    run, config = frozen.run, frozen.run.config
    scores = criterion_scores(
        name,
        frozen.model,
        run.budget.units,
        run.criterion_sequences,
        batch_size=config.batch_size,
        seed=config.seed,
        on_batch=on_batch,
        removable=run.budget.costs > 0,  # what costs nothing always stays
    )
    if name in ADDITIVE and (config.learns or run.ranks_per_cost):
        scores = per_cost(scores, run.budget.costs)
    return scores
