"""What the operating system refuses ends in one line, like any bad input."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.cli.command import (
    SHORT,
    assert_refused,
    command_line,
    environment,
    grasp_deploy,
    run_process,
)

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("options", [("--json",), ()])
def test_a_full_disk_under_stdout(pruned: Path, options: tuple[str, ...]) -> None:
    """In a process of its own: what stdout still holds is written at its very end."""
    command = command_line("inspect", pruned, *options)
    with FULL.open("w") as full:
        ended = subprocess.run(
            command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("error: No space left on device")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] can't allocate memory: you tried"),
    ],
    ids=["GPU", "CPU"],
)
def test_out_of_memory(
    pruned: Path, work: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("grasp_deploy.evaluate.perplexity.perplexity", full)
    ended = grasp_deploy("evaluate", "perplexity", pruned, "--data", "text.txt", *SHORT[:4])
    assert_refused(ended, str(error).splitlines()[0], "smaller batch size")


def test_links_that_lead_to_themselves(tiny_folder: Path, work: Path) -> None:
    loop = work / "loop"
    loop.symlink_to(loop)
    compress = ("compress", tiny_folder, "-o", "out", "--keep", "0.6", *SHORT)
    for command in (
        ("inspect", loop),
        ("verify", loop),
        ("report", loop),
        ("compress", loop, "-o", "out", "--keep", "0.6", "--calibration", "text.txt", *SHORT),
        (*compress, "--calibration", loop),
        (*compress, "--calibration", "text.txt", "-o", loop / "out"),
    ):
        assert_refused(grasp_deploy(*command), str(loop))
    assert {path.name for path in work.iterdir()} == {"loop", "text.txt"}


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed(pruned: Path, closed: str) -> None:
    good, bad = (
        subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *command_line("inspect", folder)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        for folder in (pruned, pruned / "none")
    )
    assert (good.returncode, bad.returncode) == (0, 2)
    assert "Traceback" not in good.stderr + bad.stderr


def test_a_name_that_is_no_utf8(pruned: Path) -> None:
    """Where the terminal takes nothing but UTF-8, as it does by default."""
    odd = os.fsdecode(b"no\xff")
    (pruned / odd).touch()
    ended = run_process("verify", pruned, PYTHONIOENCODING="utf-8:strict")
    assert ended.code == 1, ended.stderr
    assert r"no\udcff" in ended.stdout and "Traceback" not in ended.stderr
