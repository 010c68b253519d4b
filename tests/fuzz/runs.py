"""One run: the world is copied and damaged, a fork of this warm process meets it, and is judged."""

import hashlib
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.checkpoint.read.validate import read_folder
from tests.fuzz.cases import damaged_world
from tests.fuzz.world import make_world, run_command

MEMORY_BYTES, FILE_BYTES = 6 * 2**30, 2**28
PROGRESS = re.compile(
    r"\S.{0,60} \d+/\d+  in \d+ s.*|warning: .*|text: .*|wrote .*|verifying.*|drawing"
)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MORE_CODES = {"verify": (1, 3), "inspect": (1,)}  # wrong, not proven; does not divide
KEPT = ("half.partial", "out.partial")  # what a run that failed may leave: its stages, paid for
BAD_OUTPUT = 99


@dataclass(frozen=True)
class Ended:
    """The end of a run, and what is wrong with it ("" if nothing is)."""

    arguments: list[str]
    code: int
    seconds: float
    stdout: str
    stderr: str
    fault: str


def in_fork(work: Callable[[], object], folder: Path, seconds: float) -> int | None:
    """Exit code of `work` in a fork whose current folder is `folder`; None if it took too long."""
    process = os.fork()
    if process == 0:
        _work(work, folder)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _work(work: Callable[[], Any], folder: Path) -> NoReturn:
    """Run in the fork, with output in files beside the folder, and never return."""
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder.with_name(name), os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for limit, size in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES)):
        resource.setrlimit(limit, (size, size))
    os.execve = _started  # type: ignore[assignment]
    _end_with(work)


def _end_with(work: Callable[[], Any]) -> NoReturn:
    code = 1
    try:
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _started(*_: object) -> NoReturn:
    """What stands in for vLLM's server: all checks have passed."""
    sys.exit(0)


def make_world_once(folder: Path) -> Path:
    """The world, made in a fork, so that this process starts no threads."""
    world = folder / "world"
    world.mkdir()
    if in_fork(lambda: make_world(world), world, 120.0):
        sys.exit((folder / "stderr").read_text())
    return world


def fuzz_once(name: str, number: int, world: Path, limit_seconds: float) -> Ended:
    """Run number `number` of a class of damage: the same number gives the same run."""
    draw = Random(f"{name} {number}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Path(folder) / "work"
        shutil.copytree(world, place, symlinks=True)
        arguments = damaged_world(name, place, draw)
        before, began = contents(place), time.monotonic()
        code = in_fork(lambda: _checked_run(arguments), place, limit_seconds)
        seconds = time.monotonic() - began
        stdout, stderr = (
            Path(folder, stream).read_text(encoding="utf-8", errors="surrogateescape")
            for stream in ("stdout", "stderr")
        )
        changed = {path for path, _ in before.items() ^ contents(place).items()}
        fault = "hang" if code is None else fault_of(arguments, code, stdout, stderr, changed)
        return Ended(arguments, -1 if code is None else code, seconds, stdout, stderr, fault)


def _checked_run(arguments: list[str]) -> int:
    """The command, and, if it says that it wrote a checkpoint, a look at that; in the fork."""
    code, out = run_command(arguments), Path("out")
    if code == 0:
        try:
            if not (out / "plan.grasp").exists():
                return 0
            load_plan(out / "plan.grasp")
            stored = read_folder(out)
            if stored.shape.quantization is not None:
                return 0
            files = set(stored.files.values())
            weights = [tensor for file in files for tensor in load_file(file).values()]
            assert all(torch.isfinite(weight).all() for weight in weights), "weights are not finite"
            sampled = int(hashlib.sha256(" ".join(arguments).encode()).hexdigest(), 16) % 5 == 0
            if sampled and run_command(["verify", "out", "--json"]) not in (0, 3):
                raise AssertionError("it does not verify")
        except Exception:
            traceback.print_exc()
            return BAD_OUTPUT
    return code


def fault_of(arguments: list[str], code: int, stdout: str, stderr: str, changed: set[str]) -> str:
    """What a user would complain about; "" if nothing."""
    lines = stderr.splitlines()
    if code == BAD_OUTPUT:
        return f"bad checkpoint: {lines[-1]}"
    if any(line.startswith("Traceback (most") for line in lines):
        places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
        own = [place for place in places if "grasp_deploy" in place] or ["?"]
        return f"traceback: {own[-1].split('grasp_deploy/')[-1]}: {lines[-1]:.120}"
    if odd := CONTROL.search(stdout + stderr):
        return f"control character {odd[0]!r}"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == 2 and (not lines or not lines[-1].startswith("error: ")):
        return f"the last line is no error: {lines[-1] if lines else 'nothing':.120}"
    if code not in (0, 2) and code not in MORE_CODES.get(arguments[0], ()):
        return f"exit code {code}: {lines[-1] if lines else '':.120}"
    others = [line for line in lines[: -1 if code == 2 else None] if not PROGRESS.fullmatch(line)]
    if others and code == 2:
        return f"more than one line: {others[0]:.120}"
    if code != 0 and (left := sorted(path for path in changed if not path.startswith(KEPT))):
        return f"something changed: {left[0]}"
    if left := sorted(path for path in changed if path.startswith("model/")):
        return f"an input changed: {left[0]}"
    return ""


def contents(folder: Path) -> dict[str, str]:
    """The hash of each file below a folder, links not followed; of other paths their kind."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file() and not path.is_symlink()
        else str(path.lstat().st_mode)
        for path in folder.rglob("*")
    }
