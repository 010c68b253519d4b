"""The stages of a compression on a loaded model, each of which a killed run can go on from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.plan import open_scales
from grasp_deploy.checkpoint.validate import TensorEntry
from grasp_deploy.job import Job
from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.compensation import Fit, compensate, output_columns
from grasp_deploy.pruning.criteria import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import mean_loss
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.scales import learn_scales
from grasp_deploy.pruning.training import LearningState, keep_mask, learn_scores
from grasp_deploy.workspace import Workspace

Watcher = Callable[[dict[str, Any]], None]
Look = Callable[[int, Tensor], None]
Outputs = dict[str, tuple[nn.Linear, Tensor]]  # a weight's name: its layer, its kept columns


@dataclass(frozen=True)
class Stages:
    """One job's stages, bound to its frozen model and to the workspace that remembers them."""

    job: Job
    model: nn.Module
    workspace: Workspace
    watch: Watcher

    def scores(self, look: Look = lambda step, scores: None) -> tuple[Tensor, float]:
        """`(N,)` scores, learnt or of a criterion, and the seconds that it took.

        `look(step, scores)` sees the scores before the first step and after each.
        """
        job = self.job
        start = torch.zeros(job.budget.units.size, device=job.device)
        schedule = job.gate_schedule
        state = LearningState(start, schedule.learning_rate)
        seconds = self.workspace.restore("gates", state)
        if seconds is None:
            seconds = self._start(state)
        look(state.step, state.values.detach())
        steps = learn_scores(
            self.model,
            job.budget,
            job.group_width,
            job.blocks,
            schedule,
            state,
            temperature=job.config.temperature,
            per_cost=self._ranks_per_cost(),
            noisy=job.config.method == "gumbel-topk",
        )
        for row in self.workspace.follow("gates", steps, state, job.budget.units, seconds):
            self.watch(row)
            look(row["step"], state.values.detach())
            seconds = row["seconds"]
        return state.chosen(schedule.select_best), seconds

    def mask(self, scores: Tensor) -> Tensor:
        """`(N,)` mask that scores keep under the budget."""
        config = self.job.config
        if (
            not self.job.learns
        ):  # a criterion's scores are of any size, and a sigmoid would saturate
            return project(scores, self.job.budget)
        return keep_mask(scores, self.job.budget, config.temperature, self._ranks_per_cost())

    def compensation(self, mask: Tensor) -> tuple[list[Fit], float]:
        """Solve the kept columns of the output layers, in the model; the fits and the seconds.

        Little text has more columns than it can tell apart. Where the held-out loss rises, the
        columns are put back as they were, and there are no fits.
        """
        job = self.job
        outputs = output_columns(self.model, job.budget.units, job.group_width, mask)
        saved = self.workspace.restore_tensors("compensation")
        if saved is not None:
            tensors, record = saved
            _put_back(outputs, tensors)
            return [Fit(**fit) for fit in record["fits"]], float(record["seconds"])
        began, fits = time.perf_counter(), []
        before, columns_before = self.heldout_loss(mask.float()), _kept_columns(outputs)
        for fit in compensate(
            self.model,
            job.budget.units,
            job.group_width,
            mask,
            job.blocks.train[: job.config.compensation_sequences],
            batch_size=job.config.batch_size,
            ridge=job.config.ridge,
        ):
            fits.append(fit)
            self.watch({"stage": "compensation", "step": len(fits), "steps": len(outputs)})
        after = self.heldout_loss(mask.float())
        if before is not None and after is not None and after > before:
            _put_back(outputs, columns_before)
            fits = []
        seconds = time.perf_counter() - began
        record = {"fits": [asdict(fit) for fit in fits], "seconds": seconds}
        self.workspace.save_tensors("compensation", _kept_columns(outputs), record)
        return fits, seconds

    def scales(self, mask: Tensor) -> tuple[Tensor, float]:
        """`(N,)` scales, 1 at the start and for removed units, and the seconds that it took."""
        job, schedule = self.job, self.job.scale_schedule
        state = LearningState(open_scales(mask).to(job.device), schedule.learning_rate)
        seconds = self.workspace.restore("scales", state) or 0.0
        units = job.budget.units
        steps = learn_scales(self.model, units, job.group_width, mask, job.blocks, schedule, state)
        for row in self.workspace.follow("scales", steps, state, units, seconds):
            self.watch(row)
            seconds = row["seconds"]
        return state.chosen(schedule.select_best), seconds

    def heldout_loss(self, gates: Tensor | None = None) -> float | None:
        """Loss on the held-out blocks, nats per token, under `(N,)` gates; None without any."""
        job = self.job
        if not len(job.blocks.heldout):
            return None
        with gated(self.model, job.budget.units, job.group_width) as open_gates:
            if gates is not None:
                open_gates.assign(gates)
            return mean_loss(self.model, job.blocks.heldout, job.config.batch_size)

    def fitted(self, mask: Tensor, scales: Tensor) -> dict[str, TensorEntry]:
        """The compensated tensors as the checkpoint will hold them, scales folded in, on disk."""
        job = self.job
        outputs = output_columns(self.model, job.budget.units, job.group_width, mask)
        widths = torch.where(job.budget.units.is_kv, job.group_width, 1).to(scales.device)
        of_column = scales.repeat_interleave(widths).split(
            [linear.in_features for linear, _ in outputs.values()]
        )
        tensors = {
            name: linear.weight[:, columns].float() * column_scales[columns]
            for (name, (linear, columns)), column_scales in zip(
                outputs.items(), of_column, strict=True
            )
        }
        path = self.workspace.save_tensors("fitted", tensors, {})
        return {
            name: TensorEntry(path, "F32", tuple(tensor.shape)) for name, tensor in tensors.items()
        }

    def _start(self, state: LearningState) -> float:
        """Put the scores of the job's criterion into a state that has not learnt yet, and save."""
        began = time.perf_counter()
        if self.job.criterion is not None:
            scores = self._criterion_scores(self.job.criterion)
            if self.job.learns:
                scores = by_rank(scores, self.job.budget)
            with torch.no_grad():
                state.values.copy_(scores)
        seconds = time.perf_counter() - began
        self.workspace.save("gates", state, seconds)
        return seconds

    def _criterion_scores(self, name: str) -> Tensor:
        """`(N,)` scores of a criterion, shared out over layers as the allocation asks."""
        job, config = self.job, self.job.config
        blocks = job.blocks.train[: config.criterion_sequences]

        def on_batch(done: int, total: int) -> None:
            self.watch({"stage": "criterion", "step": done, "steps": total})

        scores = criterion_scores(
            name,
            self.model,
            job.budget.units,
            job.group_width,
            blocks,
            batch_size=config.batch_size,
            seed=config.seed,
            on_batch=on_batch,
        )
        if name in ADDITIVE and (job.learns or self._ranks_per_cost()):
            scores = per_cost(scores, job.budget.costs)
        if config.allocation != "owl":
            return allocate(config.allocation, scores, job.budget)
        ratios = outlier_ratios(self.model, blocks, config.batch_size, on_batch)
        return allocate("owl", scores, job.budget, ratios)

    def _ranks_per_cost(self) -> bool:
        config = self.job.config
        if config.ranking == "auto":
            return config.method in ADDITIVE
        return config.ranking == "score-per-cost"


def _kept_columns(outputs: Outputs) -> dict[str, Tensor]:
    """Copies of the kept columns of output layers, by the weight's name."""
    return {name: linear.weight[:, columns] for name, (linear, columns) in outputs.items()}


@torch.no_grad()
def _put_back(outputs: Outputs, kept: dict[str, Tensor]) -> None:
    """Put kept columns into their output layers."""
    for name, (linear, columns) in outputs.items():
        linear.weight[:, columns] = kept[name].to(linear.weight)
