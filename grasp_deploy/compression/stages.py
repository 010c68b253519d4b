"""The stages of a compression on a loaded model, each of which a killed run can go on from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import unit_scales
from grasp_deploy.checkpoint.read.validate import TensorEntry
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.initial_scores import start_of
from grasp_deploy.pruning.compensation import Fit
from grasp_deploy.pruning.learning_state import LearningState
from grasp_deploy.pruning.ranking import Ranking
from grasp_deploy.pruning.swaps import groups_near_the_cut, try_swaps
from grasp_deploy.pruning.training import learn_scales, learn_scores

Look = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class _Candidate:
    """A mask, and output columns to go with it."""

    loss: float  # on the held-out blocks, nats per token
    mask: Tensor  # (N,) bool
    fits: list[Fit]  # none: the columns are the dense model's
    columns: dict[str, Tensor]


class Stages:
    """The stages of one subject, in the order of the methods."""

    def __init__(self, subject: FrozenModel) -> None:
        self.subject = subject
        self.seconds: dict[str, float] = {}  # of each stage that is done
        self.swaps: list[dict[str, Any]] = []  # that were accepted

    def scores(self, look: Look = lambda step, scores: None) -> tuple[Tensor, list[Tensor]]:
        """`(N,)` scores, learnt or of a criterion, and the `(N,)` masks that they leave to choose.

        The first mask is the scores' own, after swaps at its cut if any are tried; others are that
        mask before the swaps, and what learning started from, if that was cut already.
        `look(step, scores)` sees the scores before the first step and after each.
        """
        subject, job = self.subject, self.subject.job
        start = start_of(subject)
        self.seconds["start"] = start.seconds
        schedule = job.gate_schedule
        state = LearningState(start.scores, schedule.learning_rate)
        seconds = subject.workspace.restore("gates", state) or 0.0
        look(state.step, state.values.detach())
        steps = learn_scores(
            subject.model,
            job.budget,
            job.group_width,
            job.blocks,
            schedule,
            state,
            temperature=job.config.temperature,
            per_cost=job.ranks_per_cost,
            noisy=job.config.method == "gumbel-topk",
            site=job.config.gate_site,
        )
        for row in subject.workspace.follow("gates", steps, state, job.budget.units, seconds):
            subject.on_progress(row)
            look(row["step"], state.values.detach())
            seconds = row["seconds"]
        self.seconds["gates"] = seconds
        scores = state.chosen(schedule.select)
        ranking = self.ranking(scores)
        own = ranking.mask if job.config.learns or start.mask is None else None
        swapped = self._swapped(ranking) if job.config.swap_groups else None
        return scores, _distinct([swapped, own, start.mask])

    def ranking(self, scores: Tensor) -> Ranking:
        """The ranking of `(N,)` scores, with the mask that they keep under the budget."""
        job = self.subject.job
        if not job.config.learns:  # a criterion's scores have any size: a sigmoid would saturate
            return Ranking.of_values(scores, job.budget)
        return Ranking.of_scores(scores, job.budget, job.config.temperature, job.ranks_per_cost)

    def compensation(self, masks: list[Tensor]) -> tuple[Tensor, list[Fit]]:
        """The mask that does best on held-out text, its output columns solved for; and the fits.

        Little text has more columns than it can tell apart: where the held-out loss of a mask rises
        by solving, its columns stay the dense model's, and there are no fits. Without held-out
        blocks it is the first mask, solved for.
        """
        subject = self.subject
        saved = subject.recall("compensation", "mask")
        if saved is not None:
            (mask,), record = saved
            self.seconds["compensation"] = float(record["seconds"])
            return mask, [Fit(**fit) for fit in record["fits"]]
        began = time.perf_counter()
        if not len(subject.job.blocks.heldout):  # nothing to compare by
            masks = masks[:1]
        ways = (way for number in range(len(masks)) for way in self._ways(masks, number))
        best = min(ways, key=lambda way: way.loss)
        subject.outputs.reset()
        subject.outputs.load(best.mask, best.columns)
        seconds = self.seconds["compensation"] = time.perf_counter() - began
        record = {"fits": [asdict(fit) for fit in best.fits], "seconds": seconds}
        subject.remember("compensation", {"mask": best.mask}, best.columns, record)
        return best.mask, best.fits

    def scales(self, mask: Tensor) -> Tensor:
        """`(N,)` scales, 1 at the start and wherever a unit is removed."""
        subject, job = self.subject, self.subject.job
        schedule, units = job.scale_schedule, job.budget.units
        state = LearningState(unit_scales(mask).to(job.device), schedule.learning_rate)
        seconds = subject.workspace.restore("scales", state) or 0.0
        steps = learn_scales(
            subject.model, units, job.group_width, mask, job.blocks, schedule, state
        )
        for row in subject.workspace.follow("scales", steps, state, units, seconds):
            subject.on_progress(row)
            seconds = row["seconds"]
        self.seconds["scales"] = seconds
        return state.chosen(schedule.select)

    def fitted(self, mask: Tensor, scales: Tensor) -> dict[str, TensorEntry]:
        """The compensated tensors as the checkpoint will hold them, scales folded in, on disk."""
        job, outputs = self.subject.job, self.subject.outputs
        widths = torch.where(job.budget.units.is_kv, job.group_width, 1)
        of_column = (
            scales.cpu()
            .repeat_interleave(widths.cpu())
            .split([linear.in_features for linear in outputs.linears.values()])
        )
        columns = outputs.columns(mask.cpu())
        tensors = {
            name: kept.float() * column_scales[columns[name]]
            for (name, kept), column_scales in zip(
                outputs.extract(mask).items(), of_column, strict=True
            )
        }
        path = self.subject.workspace.save_tensors("fitted", tensors, {})
        return {
            name: TensorEntry(path, "F32", tuple(tensor.shape)) for name, tensor in tensors.items()
        }

    def _swapped(self, ranking: Ranking) -> Tensor:
        """The mask of a ranking after the swaps at its cut that lower the held-out loss."""
        subject, job = self.subject, self.subject.job
        if (saved := subject.recall("swaps", "mask")) is not None:
            (mask,), record = saved
            self.swaps, self.seconds["swaps"] = record["accepted"], float(record["seconds"])
            return mask
        began = time.perf_counter()
        mask = ranking.mask
        groups = groups_near_the_cut(ranking, job.config.swap_groups)
        swaps = try_swaps(ranking, groups, self._loss)
        for step, swap in enumerate(swaps, start=1):
            mask = swap.mask
            if swap.accepted:
                told = {"unit": swap.unit, "keeps": swap.keeps, "heldout_loss": swap.loss}
                self.swaps.append(told)
            subject.on_progress({"stage": "swaps", "step": step, "steps": len(groups)})
        seconds = self.seconds["swaps"] = time.perf_counter() - began
        subject.remember("swaps", {"mask": mask}, {}, {"accepted": self.swaps, "seconds": seconds})
        return mask

    def _ways(self, masks: list[Tensor], number: int) -> Iterator[_Candidate]:
        """A mask with its columns solved for; then as they are, for which a tie is not enough."""
        subject, mask = self.subject, masks[number]
        layers = len(subject.outputs.linears)
        blocks = subject.job.blocks.train[: subject.job.config.compensation_sequences]
        fits = []
        for fit in subject.compensate(mask, blocks):
            fits.append(fit)
            step = number * layers + len(fits)
            subject.on_progress(
                {"stage": "compensation", "step": step, "steps": len(masks) * layers}
            )
        yield self._way(mask, fits)
        if len(subject.job.blocks.heldout):
            subject.outputs.reset()
            yield self._way(mask, [])

    def _way(self, mask: Tensor, fits: list[Fit]) -> _Candidate:
        """The mask on the model as it is."""
        return _Candidate(self._loss(mask), mask, fits, self.subject.outputs.extract(mask))

    def _loss(self, mask: Tensor) -> float:
        """On the held-out blocks; infinite if it is no number, or unknown."""
        loss = self.subject.heldout_loss(mask.float())
        return math.inf if loss is None or math.isnan(loss) else loss


def _distinct(masks: list[Tensor | None]) -> list[Tensor]:
    """Those that there are, none of them twice, in their order."""
    distinct: list[Tensor] = []
    for mask in masks:
        if mask is not None and not any(torch.equal(mask, other) for other in distinct):
            distinct.append(mask)
    return distinct
