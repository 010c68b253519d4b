"""Run `grasp-deploy` as a user does: in this process for speed, or as a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grasp_deploy.cli.app import app
from grasp_deploy.engine.vllm_process import installed_platform
from grasp_deploy.errors import InputError

REPOSITORY = Path(__file__).parents[2]
ENTRY = "from grasp_deploy.cli import main; main()"
# A schedule of seconds on a tiny model. Options that a test adds behind it win.
SHORT: tuple[str, ...] = (
    *("--sequences", "4", "--sequence-length", "16"),
    *("--set", "rounds=1", "--set", "epochs=1", "--set", "scale-epochs=0", "--device", "cpu"),
)


# Keys that every command prints about a model on --json.
INSPECTED = {
    *("parameters", "weight_bytes", "kv_bytes_per_token", "layers", "distinct_shapes"),
    "tensor_parallel_sizes",
}


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command that has ended."""

    code: int
    stdout: str
    stderr: str


def grasp_deploy(*arguments: str | Path) -> Ended:
    """Run a command in this process. Any exception but an exit is raised here."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="grasp-deploy")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def document(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run a command and return the one JSON document that it prints, with nothing around it."""
    ended = grasp_deploy(*arguments)
    assert ended.code == code, ended.stderr
    record: dict[str, Any] = json.loads(ended.stdout)
    return record


def has_vllm() -> bool:
    """Whether any build of vLLM is installed."""
    try:
        installed_platform()
    except InputError:
        return False
    return True


needs_vllm = pytest.mark.skipif(not has_vllm(), reason="vLLM is not installed")


def command_line(*arguments: str | Path) -> list[str]:
    """Arguments that start the command as a process of its own."""
    return [sys.executable, "-m", "grasp_deploy", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the package importable from any folder, and some changes."""
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes}


def run_process(*arguments: str | Path, timeout_seconds: float = 300, **changes: str) -> Ended:
    """Run a command as a process of its own, with changes of its environment variables."""
    done = subprocess.run(
        command_line(*arguments),
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def run_python(program: str) -> str:
    """Standard output of a program in an interpreter of its own, which must end well."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` by its relative path, hidden ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def assert_refused(ended: Ended, *words: str) -> None:
    """Assert exit code 2, nothing on stdout, and one line on stderr that has all these words."""
    assert ended.code == 2, (ended.code, ended.stderr)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("error: "), lines[0]
    assert "Traceback" not in lines[0]
    missing = [word for word in words if word not in lines[0]]
    assert not missing, (missing, lines[0])
