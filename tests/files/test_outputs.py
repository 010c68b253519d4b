"""Replacing a folder: killed at any place, a whole one has the name or gets it back."""

import fcntl
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files import outputs
from grasp_deploy.files.disk import exchange
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import (
    MANIFEST_FILE,
    PLAN_FILE,
    lock_of,
    locked,
    refuse_existing,
    refuse_inside_checkpoint,
    staged_directory,
)

PARTS = ("a", "b")


def write_whole(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in PARTS:
        (folder / name).write_text(text)
    write_json(folder / MANIFEST_FILE, {"sha256": dict.fromkeys(PARTS, text)})


def text_of(folder: Path) -> str:
    """The text of a whole folder, which all of its files hold."""
    assert sorted(path.name for path in folder.iterdir()) == [*PARTS, MANIFEST_FILE]
    (text,) = {(folder / name).read_text() for name in PARTS}
    return text


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exchange_and_die(one: Path, other: Path) -> None:
    exchange(one, other)
    kill()


def rename_and_die(path: Path, target: Path) -> None:
    path.replace(target)
    kill()


def remove_in_part(path: Path, **_: object) -> None:
    if path.exists():
        next(path.iterdir()).unlink()
        kill()


@pytest.mark.parametrize(
    ("exchanges", "place", "change", "left"),
    [
        (True, (outputs, "exchange"), kill, "old"),
        (True, (outputs, "exchange"), exchange_and_die, "new"),
        (True, (shutil, "rmtree"), remove_in_part, "new"),
        (False, (Path, "rename"), rename_and_die, None),  # as on NFS
        (False, (shutil, "rmtree"), remove_in_part, "new"),
    ],
)
def test_a_killed_replacement(
    tmp_path: Path, exchanges: bool, place: tuple[Any, str], change: Any, left: str | None
) -> None:
    output = tmp_path / "out"
    write_whole(output, "old")
    child = os.fork()
    if child == 0:
        if not exchanges:
            vars(outputs)["exchange"] = lambda *_: False
        try:
            with staged_directory(output, overwrite=True) as staging:
                write_whole(staging, "new")
                setattr(*place, change)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert (text_of(output) if output.exists() else None) == left
    with pytest.raises(InputError, match="exists"):
        refuse_existing(output, overwrite=False)
    assert text_of(output) == (left or "old")
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_an_exchange_needs_both(tmp_path: Path) -> None:
    for name in "ab":
        write_whole(tmp_path / name, name)
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (text_of(tmp_path / "a"), text_of(tmp_path / "b")) == ("b", "a")
    assert not exchange(tmp_path / "a", tmp_path / "c")
    assert text_of(tmp_path / "a") == "b"


def test_what_lies_in_a_checkpoint(tmp_path: Path) -> None:
    """However it is written: the way there may lead out again, or in by a link."""
    checkpoint, link = tmp_path / "smaller", tmp_path / "link"
    checkpoint.mkdir()
    link.symlink_to(checkpoint)
    write_json(checkpoint / MANIFEST_FILE, {"sha256": {PLAN_FILE: ""}})
    for inside in (checkpoint / "a", checkpoint / "a" / "b", link / "a", link / ".." / "smaller/a"):
        with pytest.raises(InputError, match="lies in the checkpoint"):
            refuse_inside_checkpoint(inside)
    refuse_inside_checkpoint(checkpoint / ".." / "again")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse_inside_checkpoint(tmp_path / "loop" / "out")


@pytest.mark.parametrize("another", [False, True])
def test_a_lock_that_its_holder_has_just_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    """Between open and lock the holder ends, and a third run may have made the file anew."""
    output, lock = tmp_path / "out", fcntl.flock

    def late(file: Any, operation: int) -> None:
        lock_of(output).unlink()
        if another:
            lock_of(output).touch()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match="run is at work on"), locked(lock_of(output), output):
        raise AssertionError("nobody holds the file of that name")
    assert lock_of(output).exists() == another, "it is the third run's"
