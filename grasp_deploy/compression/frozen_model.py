"""The frozen model under compression, and what every stage does with it.

Weights never take a gradient: only gates, and the output columns that are refitted, change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.compensation import Fit, OutputProjections, compensate
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import OVERFLOW, LossError, mean_loss
from grasp_deploy.pruning.schedule import Schedule
from grasp_deploy.pruning.training import LearningState, StepRecord, freeze

OnStep = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class StageResult:
    """The result of a finished stage, as the workspace keeps it."""

    vectors: dict[str, Tensor]  # (N,) by name
    columns: dict[str, Tensor] = field(default_factory=dict)  # refitted for `vectors["mask"]`
    record: dict[str, Any] = field(default_factory=dict)  # plain values


class FrozenModel:
    """A run's model, with the workspace that keeps what its stages found."""

    def __init__(
        self, run: PreparedRun, model: nn.Module, workspace: Workspace, on_progress: OnProgress
    ) -> None:
        self.run, self.model, self.workspace = run, model, workspace
        self.on_progress = on_progress
        self.seconds = dict.fromkeys(("start", "gates", "scales"), 0.0)  # of each stage that ran
        self.outputs = OutputProjections(
            model, run.budget.units, resettable=run.config.compensation
        )

    @classmethod
    def load(cls, run: PreparedRun, workspace: Workspace, on_progress: OnProgress) -> FrozenModel:
        """Load the run's weights onto its device and freeze them."""
        config = run.config
        model = load_checked(run.source.directory, run.device, config.dtype, config.attention)
        freeze(model, config.gradient_checkpointing)
        return cls(run, model, workspace, on_progress)

    @contextmanager
    def gated(self, gates: Tensor | None) -> Iterator[None]:
        """Hold the model under `(N,)` gates within the `with` block; None opens all of them."""
        with gated(self.model, self.run.budget.units) as installed:
            if gates is not None:
                installed.assign(gates)
            yield

    def heldout_loss(self, gates: Tensor | None = None) -> float | None:
        """Loss on the held-out sequences under `(N,)` gates, nats per token; None without any.

        Without gates it is the dense model's. Raises LossError if that is not finite.
        """
        heldout = self.run.blocks.heldout
        if not len(heldout):
            return None
        with self.gated(gates):
            loss = mean_loss(self.model, heldout, self.run.config.batch_size)
        if gates is None and not math.isfinite(loss):
            raise LossError(f"the dense model's loss on held-out sequences is {loss}: {OVERFLOW}")
        return loss

    def mask_loss(self, mask: Tensor) -> float:
        """Held-out loss of a `(N,)` mask; infinite where it is unknown or not a number."""
        loss = self.heldout_loss(mask.float())
        return math.inf if loss is None or math.isnan(loss) else loss

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
        on_step: OnStep = lambda step, values: None,
    ) -> Tensor:
        """Run a learning stage from where it was saved; the `(N,)` values that it ends with.

        `on_step(step, values)` sees the values before the first step and after each.
        """
        state = LearningState(start, schedule.learning_rate)
        seconds = self.workspace.restore(stage, state) or 0.0
        on_step(state.step, state.values.detach())
        units = self.run.budget.units
        for row in self.workspace.follow(stage, steps(state), state, units, seconds):
            self.on_progress(row)
            on_step(row["step"], state.values.detach())
            seconds = row["seconds"]
        self.seconds[stage] = seconds
        return state.chosen(schedule.select)

    def once(
        self, stage: str, names: tuple[str, ...], compute: Callable[[], StageResult]
    ) -> StageResult:
        """A stage's result: the saved one, or else computed, timed and saved."""
        result = self.recall(stage, *names)
        if result is None:
            began = time.perf_counter()
            result = compute()
            self.save(stage, result, time.perf_counter() - began)
        self.seconds[stage] = float(result.record["seconds"])
        return result

    def save(self, stage: str, result: StageResult, seconds: float) -> None:
        """Save a stage's result, so that a resumed run goes on behind it."""
        result.record["seconds"] = seconds
        self.workspace.save_tensors(stage, {**result.vectors, **result.columns}, result.record)

    def recall(self, stage: str, *names: str) -> StageResult | None:
        """The saved result of a stage, its columns back in the model; None if it has none."""
        size = (self.run.budget.units.size,)
        saved = self.workspace.restore_tensors(stage, dict.fromkeys(names, size))
        if saved is None:
            return None
        tensors, record = saved
        vectors = {name: tensors.pop(name).to(self.run.device) for name in names}
        if tensors:
            self.outputs.reset()
            self.outputs.load(vectors["mask"], tensors)
        return StageResult(vectors, tensors, record)
