"""The scripts of benchmarks/, which lie in no package, as tests run them in this process."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))


def refused(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> str:
    """What a script says, in one line, of options that it refuses with exit code 2."""
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = [line for line in said.err.splitlines() if line]
    return line
