"""The stages of a run: each is computed once, saved, timed and told of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from grasp_deploy.compression.resume import StageResult, Workspace
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.schedule import Schedule
from grasp_deploy.pruning.training import LearningState, StepRecord
from grasp_deploy.pruning.units import UnitTable

SAVE_EVERY_SECONDS = 5.0
RECORDED = ("start", "gates", "scales")  # stages with seconds even where they did not run


class Stages:
    """What the stages of a run came to, in its workspace."""

    def __init__(self, workspace: Workspace, units: UnitTable, on_progress: OnProgress) -> None:
        self.workspace, self.on_progress, self._units = workspace, on_progress, units
        self.records: dict[str, dict[str, Any]] = {stage: {"seconds": 0.0} for stage in RECORDED}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each stage took."""
        return {stage: record["seconds"] for stage, record in self.records.items()}

    def report(self, stage: str, step: int, steps: int) -> None:
        """Report the progress of a stage that has no metrics."""
        self.on_progress({"stage": stage, "step": step, "steps": steps})

    def once(self, stage: str, compute: Callable[[], StageResult]) -> StageResult:
        """A stage's result, computed, timed and saved unless it was before."""
        if not self.workspace.has(stage):
            began = time.perf_counter()
            tensors, record = compute()
            seconds = time.perf_counter() - began
            self.workspace.save(stage, tensors, {**record, "seconds": seconds})
        return self.recall(stage)

    def recall(self, stage: str) -> StageResult:
        """The saved tensors and record of a stage."""
        tensors, self.records[stage] = self.workspace.load(stage)
        return tensors, self.records[stage]

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

    def _metrics_row(self, step: StepRecord, seconds: float) -> dict[str, Any]:
        ffn_share, kv_share = self._units.kept_shares(step.mask)
        names = ("stage", "step", "steps", "loss", "heldout_loss")
        row = {name: getattr(step, name) for name in names}
        return row | {"kept_ffn_share": ffn_share, "kept_kv_share": kv_share, "seconds": seconds}
