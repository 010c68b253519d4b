"""How studies end: with a record, or in one line."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import output
from grasp_deploy.errors import InputError


def test_a_full_disk_ends_in_a_line_that_names_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, record: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "write_record", full)
    output.write(None, {})
    with pytest.raises(InputError, match=f"cannot write {tmp_path / 'a.json'}: the disk is full"):
        output.write(tmp_path / "a.json", {})


def test_records_are_written_at_one_place() -> None:
    writers = [p.name for p in output.FOLDER.rglob("*.py") if "write_record" in p.read_text()]
    assert writers == ["output.py"]


def test_a_study_that_is_stopped() -> None:
    """In a process of its own: signals are of the whole process."""
    program = (
        "import os, signal, time; from benchmarks.common.output import run_command\n"
        "def main(): os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "run_command(main)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=output.FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in ended.stderr
