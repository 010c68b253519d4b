"""Pruned models that a study finds in its work folder are those that it asks for."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.common.models import add_export_options, pruned
from benchmarks.common.output import add_output_options
from grasp_deploy.errors import InputError

Made = tuple[Path, argparse.Namespace]


@pytest.fixture(scope="module")
def made(tiny: Path, texts: list[Path], work: Path) -> Made:
    """A pruned model in the work folder, and the options that it was made with."""
    parser = argparse.ArgumentParser()
    add_export_options(parser)
    add_output_options(parser, "")
    named = ["--model", str(tiny), "--calibration", str(texts[0])]
    options = parser.parse_args(["--smoke", *named])
    return pruned(options, work, 0.5), options


def test_what_is_asked_for_again_is_not_made_again(made: Made, work: Path, tmp_path: Path) -> None:
    """Under whatever path the same model and text are named."""
    output, options = made
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    copy = shutil.copy(options.calibration, tmp_path / "copy.jsonl")
    model = options.model / ".." / options.model.name
    again = argparse.Namespace(**{**vars(options), "calibration": copy, "model": model})
    assert pruned(options, work, 0.5) == pruned(again, work, 0.5) == output
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before


@pytest.mark.parametrize("change", ["model", "calibration", "settings", "plan"])
def test_what_was_made_of_something_else_is_refused(
    change: str, made: Made, texts: list[Path], work: Path, tmp_path: Path
) -> None:
    output, options = made[0], argparse.Namespace(**vars(made[1]))
    if change == "model":
        options.model, words = other_model(options.model, tmp_path), "was made of other weights"
    elif change == "calibration":
        options.calibration, words = texts[1], "made of other calibration tokens"
    elif change == "settings":
        options.smoke, options.sequences = False, 4
        words = "was made with rounds 1, not 5"
    else:
        work, output, words = tmp_path, tmp_path / output.name, "has no plan that can be read"
        output.mkdir()
    with pytest.raises(InputError) as refused:
        pruned(options, work, 0.5)
    assert str(refused.value).startswith(f"{output} ") and words in str(refused.value)
    assert "name another folder as --work, or delete it" in str(refused.value)


def other_model(model: Path, parent: Path) -> Path:
    """A model with other norms, in a folder of the same name."""
    folder = parent / model.name
    shutil.copytree(model, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] *= 2
    save_file(weights, file, {"format": "pt"})
    return folder
