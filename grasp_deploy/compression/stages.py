"""The stages of a run, each computed once, saved, timed and reported, and the passes of each."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from operator import gt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grasp_deploy.compression.ranks import by_lead
from grasp_deploy.compression.resume import StageResult, Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.compress_options import GATE_SEQUENCES
from grasp_deploy.data import calibration_sources
from grasp_deploy.data.mixture import shares
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.schedule import HELDOUT_CHECKS, CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, StepRecord
from grasp_deploy.pruning.units import UnitTable

SAVE_EVERY_SECONDS = 5.0
SAVING_PAUSES = 4  # such pauses for each second that saving takes: a twentieth of the time
OWN_TEXT, PREDICTIONS, RECOVERY = "own-text", "predictions", "recovery"
OWN_METHOD = "criterion"  # of the user
MOST_ROWS = 128  # of own text that are written at once: a step reads the weights once for all
MOST_ROWS_ON_GPU = 512  # with fewer rows a step of a small model takes as long
ALONE_PASSES = 50  # passes that take as long as reading the weights for each token of such rows
MORE_TEXT = "recovery-text"  # what the model writes to recover on
OF_RECOVERY = (OWN_TEXT, MORE_TEXT, RECOVERY)


class Sequences(NamedTuple):
    """How many sequences there are, and how many a round, the last refit and recovery read."""

    own: int  # written by the model itself
    heldout: int
    train: int
    scored: int
    fitted: int
    recovered: int
    more_own: int  # written by the model itself, for recovery alone


def sequences_of(config: CompressConfig) -> Sequences:
    """Count the sequences of a run; raises InputError for sources that cannot be."""
    given = config.calibration, config.calibration_split, config.calibration_column
    sources = calibration_sources(*given)
    weights = [source.weight for source in sources]
    counts = shares(weights, config.sequences)
    own = sum(count for count, source in zip(counts, sources, strict=True) if source.is_own)
    heldout = sum(len(CalibrationBlocks.split(torch.empty(count)).heldout) for count in counts)
    train = config.sequences - heldout
    scored, fitted = (min(train, config.sequences_of(s)) for s in ("criterion", "compensation"))
    recovered = math.ceil((config.recover or 0) / config.sequence_length)
    more = shares(weights, recovered) if recovered >= len(sources) else counts
    more_own = sum(count for count, source in zip(more, sources, strict=True) if source.is_own)
    return Sequences(own, heldout, train, scored, fitted, recovered, max(0, more_own - own))


def passes_of(
    config: CompressConfig,
    kept: float | None = None,
    larger: float | None = None,
    at_once: int = MOST_ROWS,
) -> dict[str, int]:
    """Forward passes of a sequence by stage, for one budget; a backward pass counts as another.

    A refit takes three of each layer, a criterion one beside its gradients. Those of the user's own
    method are unknown, and count as 0. Writing token by token counts as the passes that take as
    long, for so many rows `at_once`. `kept` is the budget's share of the prunable cost. A run from
    a `larger` share first refits what that kept.
    """
    n, refits = sequences_of(config), config.compensation
    # All rounds for an unknown share: what another budget than --keep removes the model tells.
    removed = (larger or 1) - (kept or config.keep or 0)
    rounds, again = config.rounds_for(removed), config.gradient_checkpointing
    # Without learning the last round refits nothing.
    cuts = rounds * (1 + refits) + refits * ((larger is not None) - (not config.learns))
    in_rounds = {"rounds": n.scored * (3 * cuts + again * rounds)}
    gates = min(n.train, GATE_SEQUENCES) if config.learns else 0
    scales = config.scale_epochs * n.train
    step, checks = 2 + again, n.heldout * (HELDOUT_CHECKS + 1)
    # The dense model reads a sequence once; in batches, which each epoch draws anew, each time.
    read = max(gates, scales if config.batch_size > 1 else min(scales, n.train))
    is_read = bool(read or refits) and config.objective == "dense"
    reading = {PREDICTIONS: is_read and read + n.heldout}
    choosing = {
        "gates": gates and gates * step + checks,
        "compensation": (3 * n.fitted + 2 * n.heldout) * refits,
    }
    found = {
        OWN_TEXT: _written(n.own, at_once),
        **(in_rounds if config.cuts_in_rounds else {OWN_METHOD: 0}),
        **(reading | choosing if gates else choosing | reading),  # when it is first needed
        "scales": scales and scales * step + checks,
        MORE_TEXT: _written(n.more_own, at_once),
        # The dense model reads along; gradients of weights are a pass more.
        RECOVERY: n.recovered and n.recovered * (step + 2) + 2 * n.heldout * (HELDOUT_CHECKS + 1),
    }
    return {stage: passes for stage, passes in found.items() if passes or stage == OWN_METHOD}


def of_recovery(passes: dict[str, int]) -> dict[str, int]:
    """The passes of the stages that run where a checkpoint is there already."""
    return {stage: passes[stage] for stage in OF_RECOVERY if stage in passes}


def _written(rows: int, at_once: int) -> int:
    return rows + ALONE_PASSES * math.ceil(rows / at_once)


def must_save(saved_at: float, saving: float) -> bool:
    """True if it is time to save again, after a monotonic time; by the clock of the lead.

    `saving` is the seconds that it took last.
    """
    pause = SAVE_EVERY_SECONDS * max(1.0, SAVING_PAUSES * saving)
    return by_lead(partial(gt, time.monotonic() - saved_at, pause))


class Stages:
    """Runs a run's stages, and keeps what they came to in its workspace."""

    def __init__(self, workspace: Workspace, units: UnitTable, on_progress: OnProgress) -> None:
        self.workspace, self.on_progress, self._units = workspace, on_progress, units
        self.records: dict[str, dict[str, Any]] = {}

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
        measure: str,
    ) -> Tensor:
        """Run a learning stage from where it was saved; return the `(n,)` values that it chooses.

        `measure` names what it lowers.
        """
        state = LearningState(start, schedule.learning_rate)
        record: dict[str, Any] = {"seconds": 0.0, "metrics": []}
        if self.workspace.has(stage):
            tensors, record = self.workspace.load(stage)
            state.restore(tensors)
        saved_at, began = time.monotonic(), time.perf_counter()
        taken = steps(state)  # which may read the text first
        record["seconds"] += time.perf_counter() - began
        for step in taken:
            record["seconds"] += step.seconds
            ffn, kv = self._units.kept_shares(step.mask)
            row = {name: getattr(step, name) for name in ("stage", "step", "steps")}
            row |= {measure: step.loss, f"heldout_{measure}": step.heldout_loss}
            row |= {"kept_ffn_share": ffn, "kept_kv_share": kv, "seconds": record["seconds"]}
            record["metrics"].append(row)
            if time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
                self.workspace.save(stage, state.tensors(), record)
                saved_at = time.monotonic()
            self.on_progress(record["metrics"][-1])
        self.workspace.save(stage, state.tensors(), record)
        self.records[stage] = record
        return state.chosen
