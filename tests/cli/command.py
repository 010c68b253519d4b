"""Run `grasp-deploy` as a user does: in this process for speed, or as a process of its own."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grasp_deploy.checkpoint.limits import installed_platform
from grasp_deploy.cli.app import app
from grasp_deploy.errors import InputError
from tests.documents import ABSENT

REPOSITORY = Path(__file__).parents[2]
# A schedule of seconds on a tiny model. Options that a test adds behind it win.
SHORT: tuple[str, ...] = (
    *("--calibration-sequences", "4", "--sequence-length", "16"),
    *("--set", "rounds=1", "--set", "scale-epochs=0", "--device", "cpu"),
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


def succeeded(*arguments: str | Path) -> Ended:
    """Run a command that ends well."""
    ended = grasp_deploy(*arguments)
    assert ended.code == 0, ended.stderr
    return ended


def document(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run a command and return the one JSON document that it prints, with nothing around it."""
    ended = grasp_deploy(*arguments)
    assert ended.code == code, ended.stderr
    record: dict[str, Any] = json.loads(ended.stdout)
    return record


def compress(model: Path | str, *options: str | Path) -> Ended:
    """Compress `text.txt`'s way into `out`, in seconds; options that a test adds win."""
    defaults = ("-o", "out", "--calibration", "text.txt", *SHORT, "--keep", "0.6")
    return grasp_deploy("compress", model, *defaults, *options)


def assert_nothing_changes(model: Path | str, *words: str, options: Sequence[str] = ()) -> None:
    """Assert that `compress` refuses in a line with these words, and leaves the folder as it is."""
    before = tree(Path.cwd())
    assert_refused(compress(model, *options), *words)
    assert tree(Path.cwd()) == before


def has_vllm() -> bool:
    """True if any build of vLLM is installed."""
    try:
        installed_platform()
    except InputError:
        return False
    return True


needs_vllm = pytest.mark.skipif(not has_vllm(), reason="vLLM is not installed")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the package importable from any folder, and some changes."""
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes}


def run_process(
    *arguments: str | Path,
    wrapped: Sequence[str] = (),
    stdout: Any = subprocess.PIPE,
    **changes: str,
) -> Ended:
    """Run Python as a process of its own, inside a command that wraps it, in a changed environment.

    The command line itself is `-m grasp_deploy`.
    """
    done = subprocess.run(
        [*wrapped, sys.executable, *map(str, arguments)],
        env=environment(**changes),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` by its relative path, hidden ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def edit_json(path: Path, **changes: object) -> None:
    """Put values at the top of a JSON file, or (ABSENT) take them out."""
    record = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: value for k, value in record.items() if value is not ABSENT}))


def assert_refused(ended: Ended, *words: str) -> None:
    """Assert exit code 2, nothing on stdout, and one line on stderr that has all these words.

    Before it others may say what was read of texts, and which times were measured.
    """
    assert ended.code == 2, (ended.code, ended.stderr)
    assert ended.stdout == ""
    lines = [
        line for line in ended.stderr.splitlines() if not line.startswith(("text: ", "times: "))
    ]
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("error: "), lines[0]
    assert "Traceback" not in lines[0]
    missing = [word for word in words if word not in lines[0]]
    assert not missing, (missing, lines[0])
