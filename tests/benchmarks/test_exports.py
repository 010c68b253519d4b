"""Pruned models that a study finds in its work folder are those that it asks for."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from grasp_deploy.demo.run import MODEL
from grasp_deploy.errors import InputError
from tests.benchmarks import scripts  # noqa: F401  so that Python finds them

import exports  # isort: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with one pruned model in it."""
    folder = tmp_path_factory.mktemp("work")
    exports.pruned(asked(), folder, 0.6)
    return folder


def asked(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    exports.add_options(parser)
    return parser.parse_args(["--smoke", *options])


def test_what_is_asked_for_again_is_not_made_again(work: Path) -> None:
    """Under whatever path the same model and text are named."""
    made = work / "model-0.6-multiple-1"
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    text = shutil.copy(work / "text/calibration.jsonl", work / "copy.jsonl")
    model = str(MODEL.parent / "../demo/model")
    for options in (asked(), asked("--model", model, "--calibration", str(text))):
        assert exports.pruned(options, work, 0.6) == made
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


@pytest.mark.parametrize("change", ["model", "calibration", "settings", "plan"])
def test_what_was_made_of_something_else_is_refused(
    change: str, work: Path, tmp_path: Path
) -> None:
    made, options = work / "model-0.6-multiple-1", asked()
    if change == "model":
        options.model, words = other_model(tmp_path / "model"), "was made of other weights"
    elif change == "calibration":
        options.calibration, words = work / "text/heldout.jsonl", "made of other calibration tokens"
    elif change == "settings":
        options.smoke, options.sequences = False, 4
        words = "was made with rounds 1, and not 5"
    else:
        made, words = tmp_path / made.name, "holds no plan that can be read"
        work = tmp_path
        made.mkdir()
    with pytest.raises(InputError) as refused:
        exports.pruned(options, work, 0.6)
    assert str(refused.value).startswith(f"{made} ") and words in str(refused.value)
    assert "name another folder as --work, or delete it" in str(refused.value)


def other_model(folder: Path) -> Path:
    """The embedded model with other norms, in a folder of the same name."""
    shutil.copytree(MODEL, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] *= 2
    save_file(weights, file, {"format": "pt"})
    return folder
