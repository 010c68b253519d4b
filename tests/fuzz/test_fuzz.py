"""A few runs of each class of damage, so that the fuzzer keeps working; `make fuzz` runs more."""

import subprocess
import sys

import pytest

from tests.cli.command import environment
from tests.fuzz.cases import CASES


@pytest.mark.slow
def test_a_few_runs_of_each_class_end_well() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--limit", "300", "--runs", str(2 * len(CASES))]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
