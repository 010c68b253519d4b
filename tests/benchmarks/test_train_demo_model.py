"""Where the demo model's script writes: it replaces its own model, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import train_demo_model as script
from grasp_deploy.demo.run import MODEL
from tests.benchmarks.commands import refused

RESULT = script.Result(1, 2, 3.0, 4, 5.0)


def test_a_folder_of_something_else_is_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mine"
    output.mkdir()
    (output / "README.md").write_text("# The demo model of somebody else")
    line = refused("train_demo_model", capsys, "--smoke", "--output", str(output))
    assert f"--output {output} exists and is not a demo model of this script" in line
    assert len(list(output.iterdir())) == 1


def test_the_demo_model_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    tokenizer = script.train_tokenizer(["Some text to learn a few pairs of bytes from."])
    for _ in range(2):  # the shipped one, then its own
        script.write_folder(folder, script.build_model(tokenizer), tokenizer, RESULT)
    assert "Held-out perplexity: 5.00" in (folder / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing is left behind"
