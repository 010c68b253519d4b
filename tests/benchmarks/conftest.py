"""One tiny model and short texts for all studies."""

from pathlib import Path

import pytest

from tests.tiny import save_tiny

TEXT = "The quick brown fox jumps over the lazy dog number {}, and nobody knows why.\n"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model of two layers."""
    folder = tmp_path_factory.mktemp("dense") / "tiny"
    save_tiny("llama", folder, num_hidden_layers=2)
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Short calibration and held-out text."""
    folder = tmp_path_factory.mktemp("short")
    for name, numbers in (("calibration.txt", range(150)), ("heldout.txt", range(150, 190))):
        (folder / name).write_text("".join(map(TEXT.format, numbers)))
    return [folder / "calibration.txt", folder / "heldout.txt"]


@pytest.fixture(scope="session")
def inputs(tiny: Path, texts: list[Path]) -> list[str]:
    """The options of a study of quality that name the tiny model and the short texts."""
    calibration, heldout = map(str, texts)
    named = ["--model", str(tiny), "--calibration", calibration]
    return ["--smoke", *named, "--evaluate", f"held-out={heldout}"]
