"""A tiny model, text to calibrate on, and a folder to work in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.cli.command import SHORT, grasp_deploy
from tests.tiny import save_tiny


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors are no work to share; threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model of 3 layers. Shared: copy it before changing anything."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_tiny("llama", folder)
    return folder


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a test, with `text.txt` to calibrate on."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def pruned(tiny_folder: Path, work: Path) -> Path:
    """Layers that differ, scales that are not all 1, and no tensor that the plan does not make."""
    choices = ("scale-epochs=1", "select=last", "compensation=false")
    learning = [word for choice in choices for word in ("--set", choice)]
    text = ("--calibration", "text.txt")
    options = ("--keep", "0.6", *text, *SHORT, *learning)
    assert grasp_deploy("compress", tiny_folder, "-o", "pruned", *options).code == 0
    return work / "pruned"
