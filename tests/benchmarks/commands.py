"""Studies as tests run them: in this process."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.output import run_command

EVERY_RECORD = {"schema_version", "benchmark", "command", "machine", "versions", "settings"}


def run(name: str, output: Path, *arguments: str) -> dict[str, Any]:
    """The record that a study writes."""
    given = ["--output", str(output), *arguments]
    importlib.import_module(f"benchmarks.{name}").main(given)
    record: dict[str, Any] = json.loads(output.read_text())
    assert record.keys() >= EVERY_RECORD
    assert record["command"].startswith(f"python -m benchmarks.{name} --output")
    return record


def refused(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a study prints before it ends with exit code 2."""
    main = importlib.import_module(f"benchmarks.{name}").main
    with pytest.raises(SystemExit) as ended:
        run_command(lambda: main(arguments))
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = [line for line in printed.err.splitlines() if line]
    return line
