"""Pruned models that a study finds in its work folder are those that it asks for."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.models import add_export_options, pruned
from benchmarks.common.output import add_output_options
from grasp_deploy.errors import InputError
from tests.tiny import save_tiny


def test_the_same_is_not_made_again_and_something_else_is_refused(
    tiny: Path, texts: list[Path], tmp_path: Path
) -> None:
    """Under whatever path the same model and text are named."""
    parser = argparse.ArgumentParser()
    add_export_options(parser)
    add_output_options(parser, "")
    named = ["--model", str(tiny), "--calibration", str(texts[0])]
    options, work = parser.parse_args(["--smoke", *named]), tmp_path / "work"

    def again(**changes: Any) -> Path:
        return pruned(argparse.Namespace(**{**vars(options), **changes}), work, 0.5)

    output = again()
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    copy = shutil.copy(texts[0], tmp_path / "copy.txt")
    assert again() == again(calibration=[str(copy)], model=tiny / ".." / tiny.name) == output
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before

    other_model = tmp_path / tiny.name
    save_tiny("llama", other_model, seed=1, num_hidden_layers=2)
    for changes, words in (
        ({"model": other_model}, "was made of other weights"),
        ({"calibration": [str(texts[1])]}, "was made of other calibration tokens"),
        ({"smoke": False, "sequences": 4}, "was made with rounds 1, not 5"),
    ):
        remedy = "name another folder as --work, or delete it"
        with pytest.raises(InputError, match=f"^{output} {words}: {remedy}$"):
            again(**changes)
