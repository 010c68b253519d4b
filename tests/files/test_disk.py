"""Reading, replacing and naming files: whole or not at all, and one line where it cannot be."""

import errno
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import (
    kind_of,
    read_text,
    sha256,
    write_files,
    write_text,
)
from grasp_deploy.files.outputs import check_file_place, staged_directory


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "broken").symlink_to("nothing")
    names = ("file", "link", "", "broken", "nothing", "file/below", "x" * 300, "a\0b")
    kinds = ["file", "file", "folder", None, None, None, None, None]
    assert [kind_of(tmp_path / name) for name in names] == kinds
    assert kind_of("/dev/null") == "special"


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe or a device"):
        read_text(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is a pipe or a device"):
        sha256(tmp_path / "pipe")


@pytest.mark.parametrize("name", [".card.incomplete", "card"])
@pytest.mark.parametrize("kind", ["link", "hard link", "dangling", "pipe"])
def test_what_lies_at_a_name_that_is_written_is_neither_followed_nor_kept(
    tmp_path: Path, name: str, kind: str
) -> None:
    folder, victim = tmp_path / "stranger's", tmp_path / "victim"
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "hard link":
        victim.write_text("mine")
        (folder / name).hardlink_to(victim)
    else:
        (folder / name).symlink_to(victim)
        if kind == "link":
            victim.write_text("mine")
    before = victim.read_text() if victim.exists() else None
    write_text(folder / "card", "new")
    assert (victim.read_text() if victim.exists() else None) == before
    card = folder / "card"
    assert [path.name for path in folder.iterdir()] == ["card"] and not card.is_symlink()
    assert card.read_text() == "new" and card.stat().st_nlink == 1


def test_a_failure_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(InputError, match=r"cannot write .*/a/b \(File exists\): make room"):
        write_files({tmp_path / "a": b"new", tmp_path / "a" / "b": b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_name_that_leaves_no_room_for_the_temporary_one_is_refused_at_once(
    tmp_path: Path,
) -> None:
    assert not check_file_place(tmp_path / ("x" * 240), "--output")
    with pytest.raises(InputError, match="File name too long"):
        check_file_place(tmp_path / ("x" * 250), "--output")
    for folder in (".", "/"):
        with pytest.raises(InputError, match="is a folder"):
            check_file_place(Path(folder), "--output")


def test_all_is_flushed_before_a_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power may leave the name with nothing in it."""
    done: list[str] = []
    flush, rename = os.fsync, Path.replace

    def flushed(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        done.append(f"flush {path.name} of {path.stat().st_size}")
        flush(file)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"rename {path.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    write_files({tmp_path / "a": b"12", tmp_path / "b": [b"1", b"23"]})
    assert done == [
        *("flush .a.incomplete of 2", "flush .b.incomplete of 3"),
        *("rename .a.incomplete", "rename .b.incomplete"),
    ]


def test_all_is_flushed_before_a_folder_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink().name)
    )
    with staged_directory(tmp_path / "out") as staging:
        (staging / "weights").write_bytes(b"1")
    assert flushed == ["weights", ".out.incomplete", tmp_path.name]


@pytest.mark.parametrize(("name", "is_ours"), [("weights", True), (None, True), ("other", False)])
def test_an_output_is_blamed_for_its_own_files_alone(
    tmp_path: Path, name: str | None, is_ours: bool
) -> None:
    """Hours of work read weights and write caches too; an error of a write names no file."""
    with (
        pytest.raises(InputError if is_ours else FileNotFoundError, match="No such file"),
        staged_directory(tmp_path / "out") as staging,
    ):
        folder = tmp_path if name == "other" else staging
        raise FileNotFoundError(errno.ENOENT, "No such file", name and str(folder / name))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_that_of_the_output_and_not_of_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_text("a")
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left"))
    monkeypatch.setattr(os, "sendfile", full)
    with (
        pytest.raises(InputError, match=r"cannot write .*/out \(No space left\)"),
        staged_directory(tmp_path / "out") as staging,
    ):
        shutil.copyfile(tmp_path / "source", staging / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    output = tmp_path / "out"
    with (
        pytest.raises(InputError, match=r"the output .*/out (exists|holds something else)"),
        staged_directory(output, overwrite=overwrite),
    ):
        output.mkdir()
        (output / "thesis.txt").write_text("three years of work")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        "out",
        "out/thesis.txt",
    ]
