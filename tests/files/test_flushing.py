"""Files are on the disk before they take their names: a kill cannot show it, so the calls do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grasp_deploy.files.disk import write_text
from grasp_deploy.files.outputs import staged_directory


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names flushed and renamed, in order."""
    made: list[str] = []

    def flushed(descriptor: int) -> None:
        made.append(f"flush {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    for name in ("replace", "rename"):
        move = getattr(Path, name)

        def moved(path: Path, target: Path, move=move) -> Path:  # type: ignore[no-untyped-def]
            made.append(f"move {path.name}")
            return move(path, target)

        monkeypatch.setattr(Path, name, moved)
    monkeypatch.setattr(os, "fsync", flushed)
    return made


def test_a_file_is_flushed_before_it_is_renamed(tmp_path: Path, events: list[str]) -> None:
    write_text(tmp_path / "record.json", "{}")
    assert events == ["flush .record.json.incomplete", "move .record.json.incomplete"]


def test_a_folder_and_its_files_are_flushed_before_it_is_renamed(
    tmp_path: Path, events: list[str]
) -> None:
    with staged_directory(tmp_path / "out") as staging:
        (staging / "weights").write_bytes(b"1")
    move = events.index("move .out.incomplete")
    assert {"flush weights", "flush .out.incomplete"} <= set(events[:move])
    assert events[-1] == f"flush {tmp_path.name}"
