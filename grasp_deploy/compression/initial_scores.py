"""What chooses units without learning, or what learning starts from: a criterion, or rounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.criteria import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.progressive import cut_in_rounds


@dataclass(frozen=True)
class InitialScores:
    """What learning starts from, or what a method without learning ends with."""

    scores: Tensor  # (N,)
    mask: Tensor | None = None  # (N,), of a cut in rounds; if gates are learnt next, columns fit it
    seconds: float = 0.0


def start_of(subject: FrozenModel) -> InitialScores:
    """The start that the config asks for; it is saved, since it takes minutes."""
    job = subject.job
    if job.criterion is None:
        return InitialScores(torch.zeros(job.budget.units.size, device=job.device))
    if job.criterion == "progressive":
        start = _cut_in_rounds(subject)
    else:
        start = _criterion_start(subject, job.criterion)
    return replace(start, scores=by_rank(start.scores, job.budget)) if job.config.learns else start


def _criterion_start(subject: FrozenModel, criterion: str) -> InitialScores:
    """A criterion's scores, made or recalled."""
    began = time.perf_counter()
    saved = subject.recall("start", "scores")
    if saved is not None:
        (scores,), record = saved
        return InitialScores(scores, seconds=float(record["seconds"]))
    start = InitialScores(_one_shot(subject, criterion), seconds=time.perf_counter() - began)
    subject.remember("start", {"scores": start.scores}, {}, {"seconds": start.seconds})
    return start


def _cut_in_rounds(subject: FrozenModel) -> InitialScores:
    rounds = _Rounds(subject)
    for scores, mask in rounds.rest():
        rounds.remember(scores, mask)
    return rounds.outcome()


class _Rounds:
    """A cut in rounds; what each comes to is saved, and a killed run goes on behind the last.

    Behind the last round columns are solved for learning alone: without it the compensation comes
    next, which solves them on more text.
    """

    def __init__(self, subject: FrozenModel) -> None:
        self.subject, self.config = subject, subject.job.config
        self.blocks = subject.job.blocks.train[: self.config.criterion_sequences]
        self.began = time.perf_counter()
        self.done, self.seconds_before = 0, 0.0
        self.scores: Tensor | None = None
        self.mask: Tensor | None = None
        if (saved := subject.recall("rounds", "scores", "mask")) is not None:
            (self.scores, self.mask), record = saved
            self.done, self.seconds_before = int(record["round"]), float(record["seconds"])

    def rest(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores and mask of each round that is left to do."""
        budget, rounds = self.subject.job.budget, self.config.rounds
        return cut_in_rounds(
            budget, rounds, self.score, self.repair, done=self.done, mask=self.mask
        )

    def score(self, mask: Tensor) -> Tensor:
        def hear(done: int, total: int) -> None:
            self.say(len(self.blocks) * done // total)

        with self.subject.gated(mask.float()):
            return _criterion_scores(self.subject, self.config.round_criterion, hear)

    def repair(self, mask: Tensor) -> None:
        if self.repairs(self.done + 1):
            for number, _ in enumerate(self.subject.compensate(mask, self.blocks), start=1):
                self.say(len(self.blocks) + number)

    def repairs(self, number: int) -> bool:
        """Whether columns are solved for in a round."""
        config = self.config
        return config.compensation and (config.learns or number < config.rounds)

    def remember(self, scores: Tensor, mask: Tensor) -> None:
        """Save what a round came to."""
        self.scores, self.mask = scores, mask
        self.done += 1
        self.say(0)
        columns = self.subject.outputs.extract(mask) if self.repairs(self.done) else {}
        record = {"round": self.done, "seconds": self.seconds()}
        self.subject.remember("rounds", {"scores": scores, "mask": mask}, columns, record)

    def outcome(self) -> InitialScores:
        assert self.scores is not None and self.mask is not None, "there is at least one round"
        return InitialScores(self.scores, self.mask, self.seconds())

    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def say(self, step: int) -> None:
        solved = len(self.subject.outputs.linears) * self.config.compensation
        per_round = len(self.blocks) + solved
        step, steps = self.done * per_round + step, self.config.rounds * per_round
        self.subject.on_progress({"stage": "rounds", "step": step, "steps": steps})


def _one_shot(subject: FrozenModel, criterion: str) -> Tensor:
    """`(N,)` scores of a criterion, whose projection shares the budget out as the config asks."""
    job, config = subject.job, subject.job.config

    def say(step: int, steps: int) -> None:
        subject.on_progress({"stage": "criterion", "step": step, "steps": steps})

    scores = _criterion_scores(subject, criterion, say)
    if config.allocation != "owl":
        return allocate(config.allocation, scores, job.budget)
    blocks = job.blocks.train[: config.criterion_sequences]
    ratios = outlier_ratios(subject.model, blocks, config.batch_size)
    return allocate("owl", scores, job.budget, ratios)


def _criterion_scores(subject: FrozenModel, name: str, on_batch: OnBatch) -> Tensor:
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
        removable=job.budget.costs > 0,  # what costs nothing always stays
    )
    if name in ADDITIVE and (job.config.learns or job.ranks_per_cost):
        scores = per_cost(scores, job.budget.costs)
    return scores
