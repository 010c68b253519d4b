"""A tiny model, text to calibrate on, a pruned checkpoint and a folder to work in."""

import shutil
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

import pytest

from tests.cli.command import compress
from tests.conftest import MakeOnce
from tests.tiny import save_tiny

TEXT = "The quick brown fox jumps over the lazy dog. " * 100


@pytest.fixture(scope="session")
def tiny_folder(make_once: MakeOnce) -> Path:
    """A dense model of 3 layers in a folder named `model`. Shared: copy it before changing it."""
    return make_once("tiny", lambda folder: save_tiny("llama", folder / "model")) / "model"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a test, with `text.txt` to calibrate on."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fetched(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """What is asked of the hub, which has the tiny model under any name and revision."""
    asked = []

    def fetch(name: str, revision: str | None, wanted: Sequence[str]) -> Path:
        asked.append((name, revision))
        return tiny_folder

    monkeypatch.setattr("grasp_deploy.checkpoint.read.source._fetch", fetch)
    return asked


@pytest.fixture(scope="session")
def pruned_once(tiny_folder: Path, make_once: MakeOnce) -> Path:
    """A checkpoint made of `tiny_folder` by the command. Shared: tests take a copy of it.

    Its layers differ, its scales are not all 1, and the plan makes all of its tensors.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "text.txt").write_text(TEXT)
        learning = ("scale-epochs=1", "compensation=false")
        with chdir(folder):
            ended = compress(tiny_folder, *(f"--set={choice}" for choice in learning))
        assert ended.code == 0, ended.stderr

    return make_once("tiny-pruned", make) / "out"


@pytest.fixture
def pruned(pruned_once: Path, work: Path) -> Path:
    """A copy of the tiny model's checkpoint in the working folder, to be changed at will."""
    return Path(shutil.copytree(pruned_once, work / "pruned"))
