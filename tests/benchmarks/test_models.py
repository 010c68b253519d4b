"""Pruned models that a study finds in its work folder are those that it asks for."""

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
    tiny_copy = Path(shutil.copytree(tiny, tmp_path / tiny.name))
    parser = argparse.ArgumentParser()
    add_export_options(parser)
    add_output_options(parser, "")
    named = ["--model", str(tiny_copy), "--calibration", str(texts[0])]
    options, work = parser.parse_args(["--smoke", *named]), tmp_path / "work"

    def again(**changes: Any) -> Path:
        return pruned(argparse.Namespace(**{**vars(options), **changes}), work, 0.5)

    output = again()
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    assert again() == output
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before
    for changes in ({"calibration": [str(texts[1])]}, {"smoke": False, "sequences": 4}):
        with pytest.raises(InputError, match=f"^{output} was made with other options, files or "):
            again(**changes)
    save_tiny("llama", tiny_copy, seed=1, num_hidden_layers=2)
    with pytest.raises(InputError, match=f"^{output} was made with other options, files or "):
        again()
