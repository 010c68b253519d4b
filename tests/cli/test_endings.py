"""Every way in which the process of a command ends: its exit code, its streams, what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_deploy.files.tensors import read_tensors
from tests.cli.command import (
    SHORT,
    assert_refused,
    command_line,
    environment,
    grasp_deploy,
    run_process,
)

FULL = Path("/dev/full")
# A run that saves its state at each step and gets a signal from itself before one of them.
SIGNALLED = """
import os, signal, sys
import torch
from grasp_deploy.compression import frozen_model
from grasp_deploy.cli import main

frozen_model.SAVE_EVERY_SECONDS = -1.0
steps, number, take_a_step = 0, signal.Signals[sys.argv.pop(1)], torch.optim.AdamW.step
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored

def step(*arguments, **options):
    global steps
    steps += 1
    if steps == 5:
        os.kill(os.getpid(), number)
    return take_a_step(*arguments, **options)

torch.optim.AdamW.step = step
main()
"""


def signalled(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SIGNALLED, name, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def learning(model: Path) -> tuple[str | Path, ...]:
    """Arguments of a compression of 8 steps of learning gates."""
    text = ("--calibration", "text.txt", *SHORT, "--sequences", "8", "--keep", "0.6")
    return ("compress", model, "-o", "out", *text, "--method", "grasp", "--json")


@pytest.mark.slow
def test_an_interrupt_leaves_a_run_that_goes_on(tiny_folder: Path, work: Path) -> None:
    ended = signalled("SIGINT", *learning(tiny_folder))
    assert (ended.returncode, ended.stdout) == (130, ""), ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert lines[-2:] == [
        "what was learnt is kept; to go on, give the same command with --resume",
        "interrupted",
    ]
    assert not (work / "out").exists()
    assert int(read_tensors(work / "out.partial" / "gates.safetensors")[0]["step"]) == 4
    resumed = grasp_deploy(*learning(tiny_folder), "--resume")
    assert resumed.code == 0, resumed.stderr
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]


@pytest.mark.slow
def test_a_termination_leaves_a_run_that_goes_on(tiny_folder: Path, work: Path) -> None:
    ended = signalled("SIGTERM", *learning(tiny_folder))
    assert (ended.returncode, ended.stdout) == (143, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in work.iterdir()) == ["out.partial", "text.txt"]
    assert grasp_deploy(*learning(tiny_folder), "--resume").code == 0


def test_bad_input_in_a_process_of_its_own(work: Path) -> None:
    assert_refused(run_process("inspect", "./none"), "no such folder: ./none")


def test_a_failed_check_with_a_name_that_is_no_utf8(pruned: Path) -> None:
    """On a terminal that takes nothing but UTF-8."""
    odd = os.fsdecode(b"no\xff")
    (pruned / odd).touch()
    ended = run_process("verify", pruned, PYTHONIOENCODING="utf-8:strict")
    assert ended.code == 1, ended.stderr
    assert r"no\udcff" in ended.stdout and "Traceback" not in ended.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_stdout(pruned: Path) -> None:
    with FULL.open("w") as full:
        ended = subprocess.run(
            command_line("inspect", pruned, "--json"),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("error: No space left on device")


@pytest.mark.parametrize(("folder", "code"), [("pruned", 0), ("none", 2)])
def test_streams_that_are_closed(pruned: Path, folder: str, code: int) -> None:
    command = command_line("inspect", pruned.with_name(folder))
    closed = ["sh", "-c", '"$@" >&- 2>&- <&-', "sh", *command]
    ended = subprocess.run(closed, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stdout + ended.stderr == ""


def test_a_link_that_leads_to_itself(work: Path) -> None:
    (work / "loop").symlink_to(work / "loop")
    assert_refused(grasp_deploy("inspect", work / "loop"), str(work / "loop"))
