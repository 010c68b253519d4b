"""The folder beside the output that keeps an unfinished compression, so that it can be resumed.

`OUTPUT.partial` holds the resolved config, hashes of what it works on, and what each stage came to
so far. Of gates and scales it holds the metrics of every step. It goes once the checkpoint is
complete.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from grasp_deploy.config.compress_config import CompressConfig, read_config_file
from grasp_deploy.config.option import flag
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors, write_text
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.outputs import MANIFEST_FILE, locked, refuse_existing
from grasp_deploy.files.tensors import read_tensors, write_tensors
from grasp_deploy.pruning.training import LearningState, StepRecord
from grasp_deploy.pruning.units import UnitTable

SAVE_EVERY_SECONDS = 5.0
CONFIG_FILE = "compress_config.json"
INPUTS_FILE = "inputs.json"
HASHED = ("weights", "calibration tokens", "costs")
METRICS_FILE = "metrics.jsonl"
LOCK_FILE = "lock"


class Workspace:
    """The folder of one compression, with what it has learnt so far."""

    def __init__(self, directory: Path, lock: ExitStack) -> None:
        self.directory = directory
        self._lock = lock  # held until it is closed, so that no second run works here

    @classmethod
    def begun_with(cls, output: Path, config: CompressConfig) -> bool:
        """True if an unfinished run of exactly this config lies beside the output."""
        path = _directory(output) / CONFIG_FILE
        return path.exists() and not _changes(_begun_config(path), config)

    @classmethod
    def open(
        cls,
        output: Path,
        config: CompressConfig,
        inputs: dict[str, Any],
        *,
        resume: bool,
        overwrite: bool,
    ) -> Workspace:
        """Open the workspace of an output: a new one, or with `resume` the one already begun.

        `inputs` identify the run, hashes among them. Raises InputError if the output or an
        unfinished run is in the way, or if another run holds the workspace. With `resume` it does
        so too if config or inputs differ from those that the run began with.
        """
        refuse_existing(output, overwrite=overwrite)
        directory = _directory(output)
        with readable_disk_errors(directory):
            begun = (directory / CONFIG_FILE).exists() and not (directory / MANIFEST_FILE).exists()
            foreign = directory.is_dir() and _holds_others(directory, begun)
        if foreign:
            raise InputError(
                f"{directory} already exists and was not created by grasp-deploy: move it or "
                "choose another --output"
            )
        if resume and begun:
            _refuse_other_config(_begun_config(directory / CONFIG_FILE), config, directory)
            _refuse_other_inputs(directory, inputs)
        elif begun and not overwrite:
            raise InputError(
                f"an unfinished run lies in {directory}: continue it with --resume, or start over "
                "with --overwrite"
            )
        lock = ExitStack()
        with readable_disk_errors(directory):
            if directory.is_symlink():
                raise InputError(f"{directory} is a link: remove it, or name another output")
            lock.enter_context(locked(directory / LOCK_FILE, output))
        workspace = cls(directory, lock)
        try:
            with readable_disk_errors(directory):
                if not (resume and begun):
                    workspace.clear()
                write_text(directory / INPUTS_FILE, json.dumps(inputs))
                write_text(directory / CONFIG_FILE, config.to_json())  # last: now it is begun
        except InputError as error:
            workspace.__exit__(InputError, error, None)
            raise
        return workspace

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, InputError):
            self.remove_unless_learnt()
        self._lock.close()

    def restore(self, stage: str, state: LearningState) -> float | None:
        """Restore a saved stage; returns the seconds it had taken, None if it was never saved."""
        saved = self.restore_tensors(stage)
        if saved is None:
            return None
        tensors, record = saved
        try:
            state.restore(tensors)
        except (KeyError, RuntimeError):  # a tensor is missing, or of another shape
            raise InputError(_damaged(self._state_path(stage))) from None
        return float(record["seconds"])

    def restore_tensors(
        self, stage: str, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and record that a stage saved; None if it was never saved.

        Raises InputError if they are damaged, or lack what has the shapes given by name.
        """
        path = self._state_path(stage)
        if not path.exists():
            return None
        try:
            tensors, record = read_tensors(path, "start anew with --overwrite")
            float(record["seconds"])
            if any(tensors[name].shape != shape for name, shape in (shapes or {}).items()):
                raise ValueError("other shapes")
        except (InputError, KeyError, TypeError, ValueError):
            raise InputError(_damaged(path)) from None
        return tensors, record

    def save_tensors(self, stage: str, tensors: dict[str, Tensor], record: dict[str, Any]) -> Path:
        """Save a stage's tensors and record; returns the file."""
        path = self._state_path(stage)
        write_tensors(path, tensors, {"seconds": 0.0, **record})
        return path

    def save(self, stage: str, state: LearningState, seconds: float) -> None:
        """Save the state of a stage that learns, and the seconds that it has taken."""
        self.save_tensors(stage, state.tensors(), {"seconds": seconds})

    def follow(
        self,
        stage: str,
        steps: Iterable[StepRecord],
        state: LearningState,
        units: UnitTable,
        seconds_before: float,
    ) -> Iterator[dict[str, Any]]:
        """Write each step's metrics and save the state every few seconds; yields the metrics."""
        self._forget_metrics_after(stage, state.step)
        seconds = seconds_before
        saved_at = time.monotonic()
        with readable_disk_errors(self.directory), self._metrics_path.open("a") as metrics:
            for record in steps:
                seconds += record.seconds
                row = _metrics_row(record, units, seconds)
                metrics.write(json.dumps(row) + "\n")
                if time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
                    metrics.flush()
                    self.save(stage, state, seconds)
                    saved_at = time.monotonic()
                yield row
            metrics.flush()
            self.save(stage, state, seconds)

    def metrics(self) -> str:
        """All metrics so far, as JSON lines."""
        path = self._metrics_path
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def clear(self) -> None:
        """Remove the files of an earlier run."""
        for path in self.directory.iterdir():
            if path.name != LOCK_FILE:
                path.unlink()

    def remove(self) -> None:
        """Remove the folder of a run that is complete."""
        shutil.rmtree(self.directory)

    def remove_unless_learnt(self) -> None:
        """Remove the folder of a run that failed before it saved any state."""
        if not any(self.directory.glob("*.safetensors")):
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _metrics_path(self) -> Path:
        return self.directory / METRICS_FILE

    def _state_path(self, stage: str) -> Path:
        return self.directory / f"{stage}.safetensors"

    def _forget_metrics_after(self, stage: str, step: int) -> None:
        """Drop the metrics of steps that a killed run took after its last save."""
        kept = []
        for line in self.metrics().splitlines():
            try:
                row = json.loads(line)
                if row["stage"] == stage and row["step"] > step:
                    break
            except (ValueError, KeyError, TypeError):  # the line that the kill cut off
                break
            kept.append(line + "\n")
        write_text(self._metrics_path, "".join(kept))


def _metrics_row(record: StepRecord, units: UnitTable, seconds: float) -> dict[str, Any]:
    ffn_share, kv_share = units.kept_shares(record.mask)
    return {
        "stage": record.stage,
        "step": record.step,
        "steps": record.steps,
        "loss": record.loss,
        "heldout_loss": record.heldout_loss,
        "kept_ffn_share": ffn_share,
        "kept_kv_share": kv_share,
        "seconds": seconds,
    }


def _begun_config(path: Path) -> dict[str, Any]:
    """Options that a run began with; InputError if they cannot be read."""
    try:
        return read_config_file(path)
    except InputError:
        raise InputError(_damaged(path)) from None


def _damaged(path: Path) -> str:
    return f"{path}, which an unfinished run left, is damaged: start over with --overwrite"


def _directory(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


def _holds_others(directory: Path, begun: bool) -> bool:
    ours = {LOCK_FILE, INPUTS_FILE, *((CONFIG_FILE, METRICS_FILE) if begun else ())}
    suffixes = (".incomplete", ".safetensors") if begun else (".incomplete",)
    return any(
        path.is_dir() or not (path.name in ours or path.name.endswith(suffixes))
        for path in directory.iterdir()
    )


def _changes(begun: dict[str, Any], config: CompressConfig) -> list[str]:
    now = config.as_dict()
    changed = [name for name in now if begun.get(name) != now[name]]
    return [f"{flag(config, name)} {begun.get(name)} -> {now[name]}" for name in changed]


def _refuse_other_config(begun: dict[str, Any], config: CompressConfig, directory: Path) -> None:
    changes = _changes(begun, config)
    if changes:
        raise InputError(
            f"the run in {directory} began with other options ({', '.join(changes)}): resume it "
            "with the same ones, or start over with --overwrite"
        )


def _refuse_other_inputs(directory: Path, inputs: dict[str, Any]) -> None:
    began = read_json(directory / INPUTS_FILE, "start anew with --overwrite")
    changed = [
        f"{name} under the same name (their SHA-256 differs)"
        if name in HASHED
        else f"{name} ({began.get(name)} -> {value})"
        for name, value in inputs.items()
        if began.get(name) != value
    ]
    if changed:
        raise InputError(
            f"the run in {directory} began with other {' and '.join(changed)}: put the old ones "
            "back, or start over with --overwrite"
        )
