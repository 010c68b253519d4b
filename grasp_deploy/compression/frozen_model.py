"""The frozen model that a job is about, and what all stages do with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.compensation import Fit, OutputLayers, compensate
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import OVERFLOW, LossError, mean_loss


class FrozenModel:
    """A job's model, with the workspace that remembers what its stages came to."""

    def __init__(
        self, job: PreparedRun, model: nn.Module, workspace: Workspace, on_progress: OnProgress
    ) -> None:
        self.job, self.model, self.workspace, self.on_progress = job, model, workspace, on_progress
        self.outputs = OutputLayers(
            model, job.budget.units, job.group_width, remember=job.config.compensation
        )

    @contextmanager
    def gated(self, gates: Tensor | None) -> Iterator[None]:
        """The model under `(N,)` gates within the `with` block; None: all open."""
        with gated(self.model, self.job.budget.units, self.job.group_width) as installed:
            if gates is not None:
                installed.assign(gates)
            yield

    def heldout_loss(self, gates: Tensor | None = None) -> float | None:
        """Loss on the held-out blocks, nats per token, under `(N,)` gates; None without any.

        Without gates it is the dense model's. Raises LossError if that is no number.
        """
        heldout = self.job.blocks.heldout
        if not len(heldout):
            return None
        with self.gated(gates):
            loss = mean_loss(self.model, heldout, self.job.config.batch_size)
        if gates is None and not math.isfinite(loss):
            raise LossError(f"the dense model's loss on held-out blocks is {loss}: {OVERFLOW}")
        return loss

    def compensate(self, mask: Tensor, blocks: Tensor) -> Iterator[Fit]:
        """Solve the columns of a `(N,)` mask on `(n, T)` blocks, from the dense weights."""
        self.outputs.restore()
        job = self.job
        return compensate(
            self.model,
            job.budget.units,
            job.group_width,
            mask,
            blocks,
            batch_size=job.config.batch_size,
            ridge=job.config.ridge,
        )

    def remember(
        self,
        stage: str,
        vectors: dict[str, Tensor],
        columns: dict[str, Tensor],
        record: dict[str, Any],
    ) -> None:
        """Save what a stage came to: `(N,)` vectors, and output columns that go with their mask."""
        self.workspace.save_tensors(stage, {**vectors, **columns}, record)

    def recall(self, stage: str, *names: str) -> tuple[list[Tensor], dict[str, Any]] | None:
        """The `(N,)` vectors of a stage that is done, and its record; None if it is not.

        Output columns that were saved with a `mask` go back into the model.
        """
        size = (self.job.budget.units.size,)
        saved = self.workspace.restore_tensors(stage, dict.fromkeys(names, size))
        if saved is None:
            return None
        tensors, record = saved
        vectors = {name: tensors.pop(name).to(self.job.device) for name in names}
        if tensors:
            self.outputs.restore()
            self.outputs.put(vectors["mask"], tensors)
        return list(vectors.values()), record
