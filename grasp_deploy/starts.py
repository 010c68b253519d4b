"""What comes before learning: a criterion's scores, or a cut in rounds that the model is fit to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.criteria import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.progressive import cut_in_rounds
from grasp_deploy.pruning.projection import project
from grasp_deploy.subject import Subject

OnStep = Callable[[int, int], None]  # steps done, steps in all


@dataclass(frozen=True)
class Start:
    """What learning starts from, or what a method without learning ends with."""

    scores: Tensor  # (N,)
    mask: Tensor | None = None  # (N,), of a cut in rounds: the model's columns are fit to it
    seconds: float = 0.0


def start_of(subject: Subject) -> Start:
    """The start that the config asks for; saved as soon as it is there, since it takes minutes."""
    job = subject.job
    if job.criterion is None:
        return Start(torch.zeros(job.budget.units.size, device=job.device), seconds=0.0)
    saved = subject.recall("start", "scores", "mask")
    if saved is None:
        _make_start(subject, job.criterion)
        saved = subject.recall("start", "scores", "mask")
    assert saved is not None, "it was saved just now"
    (scores, mask), record = saved
    return Start(
        by_rank(scores, job.budget) if job.config.learns else scores,
        mask if job.criterion == "progressive" else None,
        float(record["seconds"]),
    )


def _make_start(subject: Subject, criterion: str) -> None:
    """Save scores and mask of a criterion, with the columns of a cut in rounds, and the seconds."""
    began, budget = time.perf_counter(), subject.job.budget
    columns: dict[str, Tensor] = {}
    if criterion == "progressive":
        scores, mask = _cut_in_rounds(subject)
        if subject.job.config.compensation:
            columns = subject.outputs.kept(mask)
    else:
        scores = _one_shot(subject, criterion)
        mask = project(scores, budget)
    vectors = {"scores": scores, "mask": mask}
    subject.remember("start", vectors, columns, {"seconds": time.perf_counter() - began})


def _cut_in_rounds(subject: Subject) -> tuple[Tensor, Tensor]:
    """`(N,)` scores and mask of the last round; what each round comes to is saved."""
    job, config = subject.job, subject.job.config
    blocks = job.blocks.train[: config.criterion_sequences]
    per_round = len(blocks) + len(subject.outputs.linears)
    done, scores, mask = 0, None, None
    if (saved := subject.recall("rounds", "scores", "mask")) is not None:
        (scores, mask), record = saved
        done = int(record["round"])

    def say(step: int) -> None:
        steps = config.rounds * per_round
        subject.watch({"stage": "rounds", "step": done * per_round + step, "steps": steps})

    def score(mask: Tensor) -> Tensor:
        with subject.gated(mask.float()):
            return _criterion_scores(subject, config.round_criterion, lambda step, _: say(step))

    def repair(mask: Tensor) -> None:
        if config.compensation:
            for number, _ in enumerate(subject.compensate(mask, blocks), start=1):
                say(len(blocks) + number)

    cuts = cut_in_rounds(job.budget, config.rounds, score, repair, done=done, mask=mask)
    for scores, mask in cuts:
        done += 1
        say(0)
        columns = subject.outputs.kept(mask) if config.compensation else {}
        subject.remember("rounds", {"scores": scores, "mask": mask}, columns, {"round": done})
    assert scores is not None and mask is not None, "there is at least one round"
    return scores, mask


def _one_shot(subject: Subject, criterion: str) -> Tensor:
    """`(N,)` scores of a criterion, whose projection shares the budget out as the config asks."""
    job, config = subject.job, subject.job.config

    def say(step: int, steps: int) -> None:
        subject.watch({"stage": "criterion", "step": step, "steps": steps})

    scores = _criterion_scores(subject, criterion, say)
    if config.allocation != "owl":
        return allocate(config.allocation, scores, job.budget)
    blocks = job.blocks.train[: config.criterion_sequences]
    ratios = outlier_ratios(subject.model, blocks, config.batch_size)
    return allocate("owl", scores, job.budget, ratios)


def _criterion_scores(subject: Subject, name: str, on_batch: OnStep) -> Tensor:
    """`(N,)` scores of a criterion on the model as it is, per cost where those compare."""
    job, config = subject.job, subject.job.config
    scores = criterion_scores(
        name,
        subject.model,
        job.budget.units,
        job.group_width,
        job.blocks.train[: config.criterion_sequences],
        batch_size=config.batch_size,
        seed=config.seed,
        on_batch=on_batch,
    )
    if name in ADDITIVE and (job.config.learns or job.ranks_per_cost):
        scores = per_cost(scores, job.budget.costs)
    return scores
