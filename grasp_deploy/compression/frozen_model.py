"""The frozen model under compression, and what every stage does with it.

Weights never take a gradient: only gates, and the output columns that are refitted, change.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.compression.own_text import STAGE as OWN_TEXT
from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.resume import COLUMNS, StageResult, Workspace
from grasp_deploy.compression.room import load_for
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.compensation import Fit, OutputProjections, compensate
from grasp_deploy.pruning.gates import gated, scaled_norms
from grasp_deploy.pruning.objective import OVERFLOW, LossError, mean_loss, sequence_losses
from grasp_deploy.pruning.ranks import add_up, part_of
from grasp_deploy.pruning.schedule import Schedule
from grasp_deploy.pruning.training import LearningState, StepRecord, freeze

T = TypeVar("T")
logger = logging.getLogger(__name__)
SAVE_EVERY_SECONDS = 5.0
RECORDED = ("start", "gates", "scales")  # stages with seconds even where they did not run


@dataclass(frozen=True)
class Reached:
    """What pruning to a larger budget has reached, for a smaller one to go on from."""

    limit: float  # of that budget
    mask: Tensor  # (N,) bool
    workspace: Workspace  # with its refitted columns


class FrozenModel:
    """A run's model, with the workspace that keeps what its stages found."""

    def __init__(
        self,
        run: PreparedRun,
        workspace: Workspace,
        on_progress: OnProgress,
        model: PreTrainedModel | None = None,
        *,
        offload: bool = False,
    ) -> None:
        """Load and freeze the weights, unless `model` has them; it writes the text that lacks.

        With `offload` they wait in the CPU's memory.
        """
        config = run.config
        model = load_for(run, offload) if model is None else model
        _refuse_infinite_weights(model, run)
        run = with_own_text(run, model, workspace, on_progress)
        freeze(model, config.gradient_checkpointing)
        self.run, self.model, self.workspace = run, model, workspace
        self.on_progress = on_progress
        self.before: Reached | None = None
        self.records: dict[str, dict[str, Any]] = {stage: {"seconds": 0.0} for stage in RECORDED}
        if workspace.has(OWN_TEXT):
            self.records[OWN_TEXT] = workspace.load(OWN_TEXT)[1]
        self.outputs = OutputProjections(model, run.budget.units, resettable=config.compensation)

    def for_member(
        self,
        run: PreparedRun,
        workspace: Workspace,
        on_progress: OnProgress,
        before: Reached | None,
    ) -> FrozenModel:
        """The same weights and text under another budget, from what a larger one has reached.

        The columns that were refitted under the larger one are put into the model.
        """
        member = copy(self)
        member.run, member.workspace = replace(run, text=self.run.text), workspace
        member.on_progress, member.before = on_progress, before
        member.records = {stage: {"seconds": 0.0} for stage in RECORDED}
        if OWN_TEXT in self.records:
            member.records[OWN_TEXT] = self.records[OWN_TEXT]
        if before is not None and run.config.compensation:
            member._put(before.workspace.load("compensation")[0])
        return member

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each stage took."""
        return {stage: record["seconds"] for stage, record in self.records.items()}

    def report(self, stage: str, step: int, steps: int) -> None:
        """Report the progress of a stage that has no metrics."""
        self.on_progress({"stage": stage, "step": step, "steps": steps})

    @contextmanager
    def gated(self, gates: Tensor | None, norm_scales: Tensor | None = None) -> Iterator[None]:
        """Hold the model under `(N,)` gates within the `with` block; None opens all of them.

        `norm_scales` are the `(2L + 1, d)` multipliers of the hidden channels behind norms.
        """
        with (
            gated(self.model, self.run.budget.units) as installed,
            scaled_norms(self.model) as norms,
        ):
            if gates is not None:
                installed.assign(gates)
            if norm_scales is not None:
                norms.assign(norm_scales.flatten())
            yield

    def heldout_loss(
        self,
        gates: Tensor | None = None,
        norm_scales: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> float | None:
        """Loss on held-out or other sequences, as `gated`, in nats per token; None without any.

        Without gates, and before any refit, the dense model's. LossError if it is not finite.
        """
        heldout = self.run.blocks.heldout if sequences is None else sequences
        if not len(heldout):
            return None
        with self.gated(gates, norm_scales):
            loss = mean_loss(self.model, heldout, self.run.config.batch_size)
        if not math.isfinite(loss):
            which = "dense" if gates is None else "pruned"
            raise LossError(f"the {which} model's loss on held-out sequences is {loss}: {OVERFLOW}")
        return loss

    def heldout_losses(
        self, gates: Tensor | None = None, norm_scales: Tensor | None = None
    ) -> list[float]:
        """Losses of the held-out sequences one by one, as `gated`; none without any."""
        heldout = self.run.blocks.heldout
        if not len(heldout):
            return []
        with self.gated(gates, norm_scales):
            return sequence_losses(self.model, heldout, self.run.config.batch_size).tolist()

    def mask_loss(self, mask: Tensor) -> float:
        """Held-out loss of a `(N,)` mask; infinite where it is unknown or not finite."""
        try:
            loss = self.heldout_loss(mask.float())
        except LossError:
            loss = None
        return math.inf if loss is None else loss

    def refit(self, mask: Tensor, sequences: Tensor) -> Iterator[Fit]:
        """Solve the output columns that a `(N,)` mask keeps, starting from the dense weights."""
        self.outputs.reset()
        run = self.run
        return compensate(
            self.model,
            run.budget.units,
            mask,
            sequences,
            batch_size=run.config.batch_size,
            ridge=run.config.ridge,
        )

    def learn(
        self,
        stage: str,
        start: Tensor,
        schedule: Schedule,
        steps: Callable[[LearningState], Iterable[StepRecord]],
    ) -> Tensor:
        """Run a learning stage from where it was saved; the `(n,)` values that it ends with."""
        state = LearningState(start, schedule.learning_rate)
        record: dict[str, Any] = {"seconds": 0.0, "metrics": []}
        if self.workspace.has(stage):
            tensors, record = self.workspace.load(stage)
            state.restore(tensors)
        saved_at = time.monotonic()
        for step in steps(state):
            record["seconds"] += step.seconds
            record["metrics"].append(self._metrics_row(step, record["seconds"]))
            if time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
                self.workspace.save(stage, state.tensors(), record)
                saved_at = time.monotonic()
            self.on_progress(record["metrics"][-1])
        self.workspace.save(stage, state.tensors(), record)
        self.records[stage] = record
        return state.chosen

    def once(self, stage: str, compute: Callable[[], StageResult]) -> StageResult:
        """A stage's result, computed, timed and saved unless it was before."""
        if not self.workspace.has(stage):
            began = time.perf_counter()
            tensors, record = compute()
            seconds = time.perf_counter() - began
            self.workspace.save(stage, tensors, {**record, "seconds": seconds})
        return self.recall(stage)

    def recall(self, stage: str) -> StageResult:
        """The saved vectors and record of a stage; its refitted columns are put into the model."""
        tensors, record = self.workspace.load(stage)
        self.records[stage] = record
        return self._put(tensors), record

    def _put(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The vectors among tensors; the columns among them are put into the model."""
        columns = {name: tensor for name, tensor in tensors.items() if COLUMNS in name}
        # Copies: a vector of the file would keep the columns beside it mapped.
        device = self.run.device
        vectors = {n: t.to(device, copy=True) for n, t in tensors.items() if n not in columns}
        if columns:
            self.outputs.reset()
            self.outputs.load(vectors["mask"], columns)
        return vectors

    def _metrics_row(self, step: StepRecord, seconds: float) -> dict[str, Any]:
        ffn_share, kv_share = self.run.budget.units.kept_shares(step.mask)
        names = ("stage", "step", "steps", "loss", "heldout_loss")
        row = {name: getattr(step, name) for name in names}
        return row | {"kept_ffn_share": ffn_share, "kept_kv_share": kv_share, "seconds": seconds}


def _refuse_infinite_weights(model: PreTrainedModel, run: PreparedRun) -> None:
    """Raise InputError for NaN or infinity: in the row of a rare token no loss would show it."""
    weights = dict(model.named_parameters())
    parts = [part_of(weight) for weight in weights.values()]
    found = torch.tensor([0 if bool(part.isfinite().all()) else 1 for part in parts])
    add_up(found)
    for (name, weight), infinite in zip(weights.items(), found, strict=True):
        if infinite:
            raise InputError(
                f"{name} of {run.source.name} holds numbers that are not finite in {weight.dtype}: "
                "fetch the model again, or try --dtype float32"
            )
