"""Pipes and devices where files belong: they may never end, so none is read or replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from grasp_deploy.files.outputs import manifest_of
from grasp_deploy.files.record import write_record
from tests.cli.command import SHORT, assert_refused, grasp_deploy
from tests.bench.records import kv_record, model

SPECIAL = ("pipe", "link", "/dev/null")


@pytest.fixture(autouse=True)
def no_endless_wait() -> Iterator[None]:
    """Whoever opens a pipe that nobody writes fails after a while, rather than to hang."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def piped(work: Path) -> Path:
    """The working folder, with a pipe, a link to it and a record."""
    os.mkfifo(work / "pipe")
    (work / "link").symlink_to("pipe")
    write_record(work / "kv.json", kv_record([model("dense")]))
    return work


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize(
    "command",
    [
        ("report",),
        ("report", "kv.json"),
        ("compress", "model", "-o", "out", *SHORT, "--config"),
    ],
)
def test_what_is_read(command: tuple[str, ...], name: str, piped: Path) -> None:
    assert_refused(grasp_deploy(*command, name), f"{name} cannot be read", "a pipe or a device")


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "kv", "model", "--predict-only", "--output"),
        ("evaluate", "tasks", "model", "--output"),
        ("report", "kv.json", "--html"),
    ],
)
def test_what_is_written(command: tuple[str, ...], name: str, piped: Path) -> None:
    words = (f"{command[-1]} {name} is a pipe or a device", "name a file")
    assert_refused(grasp_deploy(*command, name), *words)


def test_parts_of_models_and_checkpoints(piped: Path) -> None:
    for name in ("config.json", "manifest.json"):
        os.mkfifo(piped / name)
    assert manifest_of(piped) == {}
    words = ("config.json cannot be read", "a pipe or a device", "fetch the model again")
    assert_refused(grasp_deploy("inspect", piped), *words)


def test_what_a_checkpoint_is_judged_by(pruned: Path, piped: Path) -> None:
    text = ("--data", "text.txt", "--sequences", "1", "--sequence-length", "16")
    ended = grasp_deploy("evaluate", "card", pruned, *text, "--record", "pipe")
    assert_refused(ended, "pipe cannot be read", "name a record")
    (pruned / "manifest.json").unlink()
    os.mkfifo(pruned / "manifest.json")
    ended = grasp_deploy("verify", pruned)
    assert ended.code == 1 and "manifest.json cannot be read" in " ".join(ended.stdout.split())
