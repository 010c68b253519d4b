"""Pruned models that a study finds in its work folder are those that it asks for."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest

from benchmarks.common.models import add_export_options, pruned
from benchmarks.common.output import add_output_options
from grasp_deploy.errors import InputError
from tests.tiny import save_tiny

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
    copy = shutil.copy(options.calibration[0], tmp_path / "copy.txt")
    model = options.model / ".." / options.model.name
    again = argparse.Namespace(**{**vars(options), "calibration": [str(copy)], "model": model})
    assert pruned(options, work, 0.5) == pruned(again, work, 0.5) == output
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before


def test_what_was_made_of_something_else_is_refused(
    made: Made, texts: list[Path], work: Path, tmp_path: Path
) -> None:
    output, options = made
    other_model = tmp_path / options.model.name
    save_tiny("llama", other_model, seed=1, num_hidden_layers=2)
    for change, words in (
        ({"model": other_model}, "was made of other weights"),
        ({"calibration": [str(texts[1])]}, "was made of other calibration tokens"),
        ({"smoke": False, "sequences": 4}, "was made with rounds 1, not 5"),
    ):
        remedy = "name another folder as --work, or delete it"
        with pytest.raises(InputError, match=f"^{output} {words}: {remedy}$"):
            pruned(argparse.Namespace(**{**vars(options), **change}), work, 0.5)
