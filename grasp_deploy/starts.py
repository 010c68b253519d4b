"""What chooses units without learning, or what learning starts from: a criterion, or rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.criteria import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.progressive import cut_in_rounds
from grasp_deploy.subject import Subject


@dataclass(frozen=True)
class Start:
    """What learning starts from, or what a method without learning ends with."""

    scores: Tensor  # (N,)
    mask: Tensor | None = None  # (N,), of a cut in rounds; if gates are learnt next, columns fit it
    seconds: float = 0.0


def start_of(subject: Subject) -> Start:
    """The start that the config asks for; it is saved, since it takes minutes."""
    job = subject.job
    if job.criterion is None:
        return Start(torch.zeros(job.budget.units.size, device=job.device))
    if job.criterion == "progressive":
        start = _cut_in_rounds(subject)
    else:
        start = _criterion_start(subject, job.criterion)
    return replace(start, scores=by_rank(start.scores, job.budget)) if job.config.learns else start


def _criterion_start(subject: Subject, criterion: str) -> Start:
    """A criterion's scores, made or recalled."""
    began = time.perf_counter()
    saved = subject.recall("start", "scores")
    if saved is not None:
        (scores,), record = saved
        return Start(scores, seconds=float(record["seconds"]))
    start = Start(_one_shot(subject, criterion), seconds=time.perf_counter() - began)
    subject.remember("start", {"scores": start.scores}, {}, {"seconds": start.seconds})
    return start


def _cut_in_rounds(subject: Subject) -> Start:
    """Scores and mask of the last round; what each round comes to is saved.

    Behind the last round columns are solved for learning alone: without it the compensation comes
    next, which solves them on more text.
    """
    job, config = subject.job, subject.job.config
    blocks = job.blocks.train[: config.criterion_sequences]
    per_round = len(blocks) + len(subject.outputs.linears) * config.compensation
    began, before, done, scores, mask = time.perf_counter(), 0.0, 0, None, None
    if (saved := subject.recall("rounds", "scores", "mask")) is not None:
        (scores, mask), record = saved
        done, before = int(record["round"]), float(record["seconds"])

    def say(step: int) -> None:
        steps = config.rounds * per_round
        subject.watch({"stage": "rounds", "step": done * per_round + step, "steps": steps})

    def score(mask: Tensor) -> Tensor:
        with subject.gated(mask.float()):
            return _criterion_scores(subject, config.round_criterion, lambda step, _: say(step))

    def is_repaired(number: int) -> bool:
        return config.compensation and (config.learns or number < config.rounds)

    def repair(mask: Tensor) -> None:
        if is_repaired(done + 1):
            for number, _ in enumerate(subject.compensate(mask, blocks), start=1):
                say(len(blocks) + number)

    seconds = before
    cuts = cut_in_rounds(job.budget, config.rounds, score, repair, done=done, mask=mask)
    for scores, mask in cuts:
        done += 1
        say(0)
        columns = subject.outputs.kept(mask) if is_repaired(done) else {}
        seconds = before + time.perf_counter() - began
        record = {"round": done, "seconds": seconds}
        subject.remember("rounds", {"scores": scores, "mask": mask}, columns, record)
    assert scores is not None and mask is not None, "there is at least one round"
    return Start(scores, mask, seconds)


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


def _criterion_scores(subject: Subject, name: str, on_batch: OnBatch) -> Tensor:
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
