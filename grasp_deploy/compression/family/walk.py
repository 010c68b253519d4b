"""The walk of one model down falling budgets, each reached from the one before."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.compression.compress import place_for, plan_of, write_planned
from grasp_deploy.compression.excess import with_excess
from grasp_deploy.compression.frozen_model import FrozenModel, Reached
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.compression.room import with_room
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.ranks import is_lead


class Walk:
    """A model under one budget after the other; it is loaded when it is needed.

    Each budget has its part of the workspace, by its name. The next goes on from the mask and the
    refitted columns of the one before.
    """

    def __init__(self, run: PreparedRun, workspace: Workspace, on_progress: OnProgress) -> None:
        self._run, self._workspace, self._on_progress = run, workspace, on_progress
        self._frozen: FrozenModel | None = None
        self._dense_loss: float | None = None
        self._dense_losses: list[float] = []
        self._before: Reached | None = None

    def learn(self, name: str, run: PreparedRun) -> tuple[Plan, dict[str, Path]]:
        """The plan under the next budget, and its fitted tensors."""
        return with_room(self._run, partial(self._learn, name, run))

    def _learn(self, name: str, run: PreparedRun, offload: bool) -> tuple[Plan, dict[str, Path]]:
        if offload:
            self._frozen = None
        if self._frozen is None:
            self._frozen = FrozenModel(
                self._run, self._workspace, self._on_progress, offload=offload
            )
            self._dense_loss = self._frozen.heldout_loss()
            self._dense_losses = self._frozen.heldout_losses()
        part = self._workspace.part(name)
        frozen = self._frozen.for_member(run, part, self._shown(name), self._before)
        plan, fitted = plan_of(frozen, self._dense_loss)
        return with_excess(plan, frozen, self._dense_losses), fitted

    def write(self, folder: Path, run: PreparedRun, shard_bytes: int, overwrite: bool) -> Plan:
        """Learn under the next budget and write the checkpoint; returns its plan."""
        with place_for(folder, overwrite, run) as staging:
            plan, fitted = self.learn(folder.name, run)
            part, show = self._workspace.part(folder.name), self._shown(folder.name)
            if is_lead():
                write_planned(plan, fitted, run, part, staging, shard_bytes, show)
        return plan

    def go_on_from(self, name: str, plan: Plan) -> None:
        """Begin the next budget at a plan; what an earlier one has saved is needed no more."""
        if self._before is not None:
            self._before.workspace.drop()
        limit, mask = plan.provenance["budget"]["limit"], plan.mask.to(self._run.device)
        self._before = Reached(limit, mask, self._workspace.part(name))

    def _shown(self, name: str) -> OnProgress:
        return lambda row: self._on_progress({**row, "member": name})
