"""Outputs and unfinished runs that stand in the way of `compress`: one line, nothing changed."""

import fcntl
import json
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.cli.deploy import compress_unless_done
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from tests.cli import conftest
from tests.cli.command import assert_nothing_changes, assert_refused, compress, edit_json, tree


@pytest.fixture(scope="module")
def unfinished_once(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an interrupt between learning and export leaves beside `out`."""
    interrupt = Mock(side_effect=KeyboardInterrupt)
    folder = tmp_path_factory.mktemp("unfinished")
    (folder / "text.txt").write_text(conftest.TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("grasp_deploy.compression.compress.write_checkpoint", interrupt)
        ended = compress(tiny_folder)
    assert ended.code == 130
    assert "--resume" in ended.stderr
    return folder / "out.partial"


@pytest.fixture
def unfinished(unfinished_once: Path, work: Path) -> Path:
    """A copy of it in the working folder."""
    return Path(shutil.copytree(unfinished_once, work / "out.partial"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_overwrite_replaces_a_checkpoint(pruned: Path, tiny_folder: Path) -> None:
    before = tree(pruned)
    assert compress(tiny_folder, "-o", "pruned", "--keep", "0.5", "--overwrite").code == 0
    assert tree(pruned).keys() == before.keys()
    assert json.loads((pruned / "compress_config.json").read_text())["keep"] == 0.5


@pytest.mark.parametrize(
    ("most_bytes", "left"),
    [
        (500, ["text.txt"]),  # not even the config fits
        (2_500, ["out.partial", "text.txt"]),  # the first scores fit, the gates do not
        (100_000, ["out.partial", "text.txt"]),  # the state fits, the weights do not
    ],
)
def test_files_that_may_not_grow(
    tiny_folder: Path, work: Path, most_bytes: int, left: list[str]
) -> None:
    small = "--set=compensation=false"  # which saves no columns on its way
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        refused = compress(tiny_folder, small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.code == 2
    last = refused.stderr.splitlines()[-1]  # above it stands the progress
    assert last.startswith("error: cannot write out") and "(File too large)" in last
    assert names(work) == left
    assert compress(tiny_folder, small, "--resume").code == 0
    assert names(work) == ["out", "text.txt"]


def test_an_unfinished_run_in_the_way(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    assert_nothing_changes(tiny_folder, f"unfinished run lies in {unfinished.name}")
    changed = ("--keep 0.6 -> 0.5", "--seed 0 -> 1")
    others = ("--resume", "--seed", "1", "--keep", "0.5")
    assert_nothing_changes(tiny_folder, *changed, options=others)
    (work / "text.txt").write_text((work / "text.txt").read_text()[1:])  # the run has saved it
    assert_nothing_changes(tiny_folder, "continue it with --resume")
    with (unfinished / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for option in ("--json", "--resume", "--overwrite"):
            assert_nothing_changes(tiny_folder, "run is at work on out", options=(option,))
    assert compress(tiny_folder, "--resume").code == 0
    assert names(work) == ["out", "text.txt"]


def test_a_run_that_was_killed_behind_its_end(
    tiny_folder: Path, work: Path, unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is whole, and what it saved still lies there."""
    shutil.copytree(unfinished, work / "copy")
    assert compress(tiny_folder, "--resume").code == 0
    (work / "copy").rename(unfinished)
    made = tree(work / "out")
    shutil.copytree(work / "out", work / ".out.incomplete")  # of a kill in an export before
    (work / ".out.lock").touch()
    monkeypatch.delattr("grasp_deploy.compression.compress.learn_plan")
    for _ in range(2):  # also where nothing is left to clear away
        assert compress(tiny_folder, "--resume").code == 0
        assert names(work) == ["out", "text.txt"] and tree(work / "out") == made
    other = ("--resume", "--seed", "1")
    assert_nothing_changes(tiny_folder, "out was made with", "--seed 0 -> 1", options=other)
    changed = Path(shutil.copytree(tiny_folder, work / "changed"))
    (changed / "chat_template.jinja").write_text("{{ messages }}")
    assert_nothing_changes(changed, "files beside the weights", options=("--resume",))


def test_resume_with_overwrite_goes_on_and_says_so(
    pruned: Path, tiny_folder: Path, work: Path, unfinished: Path
) -> None:
    pruned.rename(work / "out")
    before = tree(work / "out")
    ended = compress(tiny_folder, "--resume", "--overwrite")
    assert ended.code == 0
    assert "going on with the unfinished run; --overwrite alone would start" in ended.stderr
    assert names(work) == ["out", "text.txt"] and tree(work / "out") != before


def test_up_and_fit_go_on_with_an_unfinished_run(work: Path, unfinished: Path) -> None:
    begun = json.loads((unfinished / "compress_config.json").read_text())
    config = CompressConfig.from_dict(begun, "it")
    with pytest.raises(InputError, match=r"out\.partial .*--seed 0 -> 1") as refused:
        compress_unless_done(replace(config, seed=1), Path("out"), overwrite=False)
    assert "--resume" not in str(refused.value), "which neither has"
    (work / "text.txt").unlink()  # the run has saved what it read
    assert compress_unless_done(config, Path("out"), overwrite=False) is not None
    assert names(work) == ["out"]


def test_an_unfinished_run_keeps_its_text(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    assert compress(tiny_folder, "-o", "whole").code == 0
    (work / "text.txt").unlink()
    ended = compress(tiny_folder, "--resume")
    assert ended.code == 0 and "text: the one that the run began with" in ended.stderr
    whole, resumed = (load_plan(work / name / PLAN_FILE) for name in ("whole", "out"))
    assert resumed.provenance["calibration"] == whole.provenance["calibration"]


def test_an_unfinished_run_on_other_files(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    stated = json.loads((unfinished / "inputs.json").read_text())
    # Another torch, or a CPU instead of a GPU, would not continue to the same bits.
    changes = {"weights": dict.fromkeys(stated["weights"], "0" * 64), "torch": "1.0"}
    assert "tokenizer.json" in stated
    edit_json(unfinished / "inputs.json", **changes, **{"device": "cuda", "tokenizer.json": "0"})
    edit_json(unfinished / "inputs.json", **{"x.jinja": "0"})  # it is gone
    refused = compress(tiny_folder, "--resume")
    changed = ("weights", "device", "torch", "tokenizer.json", "x.jinja")
    assert_refused(refused, *changed, "the same ones")


def test_a_damaged_unfinished_run(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    (unfinished / "compress_config.json").write_text("{")
    words = ("compress_config.json cannot be read", "start over with --overwrite")
    assert_refused(compress(tiny_folder, "--resume"), *words)
    assert compress(tiny_folder, "--overwrite", "--keep", "0.5").code == 0
    assert json.loads((work / "out/compress_config.json").read_text())["keep"] == 0.5
    assert names(work) == ["out", "text.txt"]


def test_a_full_disk_is_found_before_the_work(
    tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("grasp_deploy.compression.compress.learn_plan")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
    assert_nothing_changes(tiny_folder, "disk of out has 97.66 KiB left")
