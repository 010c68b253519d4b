"""The folder beside the output that keeps an unfinished compression, so that it can be resumed.

`OUTPUT.partial` holds the resolved config, hashes of the inputs, and what each stage came to so
far. It is removed once the checkpoint is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grasp_deploy.compression.ranks import by_lead, is_lead, rows_at_lead, rows_from_lead
from grasp_deploy.config.compress_config import CompressConfig, changed_options
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of, readable_disk_errors, write_text
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.outputs import check_named, locked
from grasp_deploy.files.tensors import checksum, read_tensors, write_tensors

if TYPE_CHECKING:
    from grasp_deploy.compression.prepare import PreparedRun
    from grasp_deploy.compression.run_options import RunOptions

CONFIG_FILE, INPUTS_FILE, LOCK_FILE = "compress_config.json", "inputs.json", "lock"
METRICS_FILE = "metrics.jsonl"  # in the checkpoint
SAVED = ".safetensors"  # the suffix of a stage's file
TEXT = "text"  # the first stage, saved before the run counts as begun
LARGER = "larger checkpoint"  # whose mask a run starts from
STEP = "keep-"  # of a checkpoint for each of several budgets
START_OVER = "start over with --overwrite alone"

# Tensors by name: `(N,)` vectors, and columns refitted for the vector `mask`. Then plain values.
StageResult = tuple[dict[str, Tensor], dict[str, Any]]
COLUMNS = ".weight"  # in the names of refitted columns, whose rows are divided among ranks


class Workspace:
    """The folder of one compression, with what its stages came to so far.

    Each file of a stage holds a checksum, bound to the stage's name and to `run`, the text that
    identifies the run. What `load` returns is what `save` was given. The lead alone reads and
    writes files: refitted columns, whose rows ranks share, are gathered for it and dealt again.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self.directory, self._run = directory, run

    @classmethod
    def begun_with(cls, output: Path, config: CompressConfig) -> bool:
        """True if an unfinished run of exactly this config lies beside the output."""
        directory = partial_of(output)
        return (directory / CONFIG_FILE).exists() and not _options_since(directory, config)

    @classmethod
    def saved_text(cls, output: Path, config: CompressConfig) -> StageResult | None:
        """The text that an unfinished run of exactly this config has read, if one lies there."""
        begun = cls(partial_of(output), config.to_json())
        is_there = cls.begun_with(output, config) and begun.path(TEXT).exists()
        return begun._read(TEXT) if is_there else None

    @classmethod
    def saved_dtype(cls, output: Path, config: CompressConfig) -> torch.dtype | None:
        """The dtype of an unfinished run of this config: a busy CPU might now choose another."""
        if not cls.begun_with(output, config):
            return None
        stated = read_json(partial_of(output) / INPUTS_FILE, START_OVER).get("dtype")
        found = getattr(torch, str(stated).removeprefix("torch."), None)
        return found if isinstance(found, torch.dtype) else None

    @classmethod
    @contextmanager
    def open(cls, options: RunOptions, run: PreparedRun) -> Iterator[Workspace]:
        """Hold the workspace of an output: a new one, or with `resume` the one already begun.

        It is removed when the block ends without an error, and by an InputError before any stage,
        or member of a family, was saved. Raises InputError if an unfinished run is in the way,
        another process holds the workspace, or, with `resume`, config or inputs have changed.
        """
        output, config, inputs = options.output, run.config, run.identity
        directory = partial_of(output)
        if not is_lead():
            yield cls(directory, "")
            return
        with ExitStack() as lock:
            with readable_disk_errors(directory):
                resumes = _continues(options, config, inputs)
                lock.enter_context(locked(directory / LOCK_FILE, output))
            # Members of a family that this run does not make; with --overwrite it makes all anew.
            others = [] if resumes or options.overwrite else [*output.glob(f"{STEP}*")]
            try:
                with readable_disk_errors(directory):
                    if not resumes:
                        _clear(directory)
                        cls(directory, config.to_json()).save(TEXT, *run.text.packed())
                    write_text(directory / INPUTS_FILE, json.dumps(inputs))
                    write_text(directory / CONFIG_FILE, config.to_json())  # last: now it is begun
                yield cls(directory, json.dumps(inputs) + config.to_json())
                _remove(directory)
            except InputError:
                there = {*directory.iterdir(), *output.glob(f"{STEP}*")}.difference(others)
                if {p.stem for p in there if p.suffix == SAVED or _is_step(p)} <= {TEXT}:
                    _remove(directory)
                raise

    def has(self, stage: str) -> bool:
        """True if a stage has saved anything."""
        return by_lead(self.path(stage).exists)

    def load(self, stage: str) -> StageResult:
        """Tensors and record that a stage has saved; InputError if the file is damaged."""
        tensors, record = self._read(stage) if is_lead() else ({}, {})
        plain: dict[str, Any] = {
            name: None if COLUMNS in name else tensors[name] for name in tensors
        }
        shared, record = by_lead(lambda: (plain, record))
        columns = (name for name in shared if COLUMNS in name)
        return shared | {name: rows_from_lead(tensors.get(name)) for name in columns}, record

    def _read(self, stage: str) -> StageResult:
        tensors, record = read_tensors(self.path(stage), START_OVER)
        if record.pop("sha256", None) != self._checksum(stage, tensors, record):
            raise InputError(
                f"the saved stage {stage!r} of {self.directory} is damaged: {START_OVER}"
            )
        return tensors, record

    def save(self, stage: str, tensors: dict[str, Tensor], record: dict[str, Any]) -> Path:
        """Save a stage's tensors, of any device, and its record; returns the file."""
        tensors = {
            name: rows_at_lead(tensor.cpu()) if COLUMNS in name else tensor
            for name, tensor in tensors.items()
        }
        if is_lead():
            sealed = {**record, "sha256": self._checksum(stage, tensors, record)}
            write_tensors(self.path(stage), tensors, sealed)
        return self.path(stage)

    def drop(self) -> None:
        """Remove all that was saved: the run is refused."""
        if is_lead():
            _clear(self.directory)

    def metrics(self) -> str:
        """Metrics of each step that learnt, as JSON lines; for the lead alone."""
        saved = [stage for stage in ("gates", "scales", "recovery") if self.path(stage).exists()]
        paths = map(self.path, saved)  # a recovery's state is large, and was checked if it went on
        records = [read_tensors(path, START_OVER, record_alone=True)[1] for path in paths]
        return "".join(json.dumps(row) + "\n" for record in records for row in record["metrics"])

    def _checksum(self, stage: str, tensors: dict[str, Tensor], record: dict[str, Any]) -> str:
        return checksum(tensors, f"{self._run}{stage}{json.dumps(record)}")

    def path(self, stage: str) -> Path:
        """The file of a stage."""
        return self.directory / f"{stage}{SAVED}"


def partial_of(output: Path) -> Path:
    """The folder of an output's unfinished run; InputError for an output without a name."""
    check_named(output)
    return output.with_name(f"{output.name}.partial")


def _continues(options: RunOptions, config: CompressConfig, inputs: dict[str, Any]) -> bool:
    """True to continue the run in the folder, False to start anew; InputError if neither may be."""
    directory = partial_of(options.output)
    refuse_foreign(directory)
    stated = (directory / CONFIG_FILE, directory / INPUTS_FILE)  # one alone: a removal was killed
    if not all(map(Path.exists, stated)) or (options.overwrite and not options.resume):
        return False
    if not options.resume:
        with locked(directory / LOCK_FILE, options.output):
            pass  # raises, with a better reason, if another run is at work in it
    before = read_json(directory / INPUTS_FILE, START_OVER)
    changed = _options_since(directory, config)
    if options.resume:  # else they were read anew, and a text that has changed hides no --resume
        changed += differing(before, inputs)
    if changed:
        raise InputError(
            f"the run in {directory} began with other options or files ({', '.join(changed)}): "
            f"go on with the same ones, name another --output, or {START_OVER}"
        )
    if not options.resume:
        raise InputError(
            f"an unfinished run lies in {directory}: continue it with --resume, or {START_OVER}"
        )
    return True


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names whose values differ."""
    return [name for name in before | now if before.get(name) != now.get(name)]


def refuse_foreign(directory: Path) -> None:
    """Raise InputError if there is something else than an unfinished run in its place."""
    if not directory.is_symlink() and not directory.exists():
        return
    is_folder = directory.is_dir() and not directory.is_symlink()
    if foreign := _foreign_in(directory) if is_folder else directory:
        raise InputError(
            f"{foreign} was not created by grasp-deploy: move it, or choose another --output"
        )


def _clear(directory: Path) -> None:
    """Remove all but the lock, the config last: while it is there, the rest is known as ours."""
    old = [path for path in directory.iterdir() if path.name != LOCK_FILE]
    last = (INPUTS_FILE, CONFIG_FILE)
    for path in sorted(old, key=lambda path: path.name in last and 1 + last.index(path.name)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _remove(directory: Path) -> None:
    _clear(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _foreign_in(directory: Path) -> Path | None:
    begun = (directory / CONFIG_FILE).exists()
    ours = [LOCK_FILE, INPUTS_FILE, TEXT + SAVED, "*.incomplete"]
    if begun:
        ours += [CONFIG_FILE, f"*{SAVED}"]
    others = (
        path
        for path in sorted(directory.iterdir())
        if (kind_of(path) != "file" or not any(path.match(name) for name in ours))
        and not (begun and _is_step(path))
    )
    return next(others, None)


def _is_step(path: Path) -> bool:
    """True for a checkpoint, finished or not, that a run under a bound on the loss keeps here."""
    return path.name.removeprefix(".").startswith(STEP) and not path.is_symlink()


def _options_since(directory: Path, config: CompressConfig) -> list[str]:
    """The options that have changed since the run in the folder began."""
    return changed_options(read_json(directory / CONFIG_FILE, START_OVER), config.as_dict())
