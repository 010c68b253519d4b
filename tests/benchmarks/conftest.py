"""One tiny model, short texts and one work folder for all studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import save_tiny

LINES = 40  # of each text


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model of three layers."""
    folder = tmp_path_factory.mktemp("dense") / "tiny"
    save_tiny("llama", folder)
    return folder


@pytest.fixture(scope="session")
def texts(demo_text: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Short calibration and held-out text."""
    folder = tmp_path_factory.mktemp("short")
    for path in demo_text:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:LINES]
        (folder / path.name).write_text("".join(lines), encoding="utf-8")
    return [folder / path.name for path in demo_text]


@pytest.fixture(scope="session")
def inputs(tiny: Path, texts: list[Path]) -> list[str]:
    """The options of a study of quality that name the tiny model and the short texts."""
    calibration, heldout = map(str, texts)
    named = ["--model", str(tiny), "--calibration", calibration]
    return ["--smoke", *named, "--evaluate", f"held-out={heldout}"]


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder: pruned models are compressed into it once for all tests."""
    return tmp_path_factory.mktemp("work")
