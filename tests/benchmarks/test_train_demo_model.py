"""Where the demo model's script writes: it replaces its own model, and nothing else."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_deploy.demo.run import MODEL
from tests.benchmarks.scripts import FOLDER, refused

import demo_folder  # isort: skip
import train_demo_model as script  # isort: skip

RESULT = script.Result(1, 2, 3.0, 4, 5.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_new_model(folder: Path) -> None:
    tokenizer = script.train_tokenizer(["Some text to learn a few pairs of bytes from."])
    script.write_folder(folder, script.build_model(tokenizer), tokenizer, RESULT)


@pytest.mark.parametrize("there", ["file", "empty", "foreign", "more", "card"])
def test_a_folder_of_something_else_is_refused_before_the_training(
    there: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "mine"
    if there == "file":
        output.write_text("mine")
    elif there == "more":
        shutil.copytree(MODEL, output)
        (output / "notes.txt").write_text("mine")
    else:
        output.mkdir()
    if there == "foreign":
        (output / "config.json").write_text("{}")
    elif there == "card":
        (output / "README.md").write_text("# The demo model of somebody else")
    before = output.read_text() if there == "file" else contents(output)
    said = refused("train_demo_model", monkeypatch, capsys, "--smoke", "--output", str(output))
    assert f"--output {output} exists and is no demo model that this script wrote" in said
    assert (output.read_text() if there == "file" else contents(output)) == before


def test_the_demo_model_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    for _ in range(2):  # the shipped one, then its own
        write_new_model(folder)
    assert demo_folder.is_demo_model(folder)
    assert "Held-out perplexity: 5.00" in (folder / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing is left behind"


def test_the_old_model_is_there_until_the_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits under another name, and gets its own back where the new one cannot have it."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    before, rename, waiting = contents(folder), Path.rename, list[Path]()

    def fail_on_the_new_one(self: Path, target: Path) -> Path:
        if not waiting and target == folder:
            waiting.extend(p for p in tmp_path.iterdir() if demo_folder.is_demo_model(p))
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_on_the_new_one)
    with pytest.raises(KeyboardInterrupt):
        write_new_model(folder)
    assert len(waiting) == 1
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing is left behind"


@pytest.mark.slow
def test_a_training_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own: signals are of the whole process."""
    command = [sys.executable, str(FOLDER / "train_demo_model.py"), "--threads", "1"]
    with subprocess.Popen(
        [*command, "--output", str(tmp_path / "model")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        for line in process.stdout:
            if line.startswith("step "):
                process.send_signal(signal.SIGTERM)
                break
        said = process.stderr.read()
    assert process.returncode == 143 and "Traceback" not in said
    assert not list(tmp_path.iterdir())
