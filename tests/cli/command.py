"""Running `grasp-deploy` as a user does: in this process for speed, or as a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from grasp_deploy.cli.app import app

REPOSITORY = Path(__file__).parents[2]
ENTRY = "from grasp_deploy.cli import main; main()"
# Seconds on a tiny model; what a test adds comes after it and wins.
SHORT = (
    *("--sequences", "4", "--sequence-length", "16"),
    *("--set", "rounds=1", "--set", "epochs=1", "--set", "scale-epochs=0", "--device", "cpu"),
)


@dataclass(frozen=True)
class Ended:
    """A command that came to its end."""

    code: int
    stdout: str
    stderr: str


def grasp_deploy(*arguments: str | Path) -> Ended:
    """Run a command in this process; whatever is no exit of ours goes up as it is."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="grasp-deploy")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def command_line(*arguments: str | Path) -> list[str]:
    """The command as a process of its own."""
    return [sys.executable, "-c", ENTRY, *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, in which the package is importable from any folder."""
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes}


def run_process(*arguments: str | Path, timeout_seconds: float = 300, **changes: str) -> Ended:
    """Run a command as a process of its own, with changes of its environment."""
    done = subprocess.run(
        command_line(*arguments),
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder below `folder`, hidden ones too, with a hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def assert_refused(ended: Ended, *words: str) -> None:
    """Bad input: exit code 2, one line on stderr that says all these words, nothing on stdout."""
    assert ended.code == 2, (ended.code, ended.stderr)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("error: "), lines[0]
    assert "Traceback" not in lines[0]
    missing = [word for word in words if word not in lines[0]]
    assert not missing, (missing, lines[0])
