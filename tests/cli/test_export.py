"""`export`: the same weights from a plan; plans and outputs that it refuses."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from grasp_deploy.checkpoint.plan import PLAN_VERSION
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import refuse_existing
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import INSPECTED, Ended, assert_refused, grasp_deploy, tree
from tests.tiny import save_tiny


def export(plan: Path, model: Path) -> Ended:
    return grasp_deploy("export", plan, "--model", model, "-o", "out")


def test_export_repeats_the_weights(pruned: Path, tiny_folder: Path, work: Path) -> None:
    model = ("--model", tiny_folder)
    ended = grasp_deploy("export", pruned / "plan.safetensors", *model, "-o", "again", "--json")
    assert json.loads(ended.stdout).keys() >= INSPECTED
    names = {path.name for path in pruned.iterdir()} - {"metrics.jsonl", "manifest.json"}
    assert names == {path.name for path in (work / "again").iterdir()} - {"manifest.json"}
    for name in names:
        assert (work / "again" / name).read_bytes() == (pruned / name).read_bytes(), name


def test_a_plan_for_another_model(pruned: Path, tiny_folder: Path, work: Path) -> None:
    plan = pruned / "plan.safetensors"
    save_tiny("llama", work / "same-shape", seed=1)
    save_tiny("llama", work / "other-shape", num_hidden_layers=2)
    before = tree(work)
    other = ("the plan was made for", str(tiny_folder), "name the same model and revision")
    refused = export(
        plan, work / "same-shape"
    )  # hashed while it is read, behind a line of progress
    assert refused.code == 2
    for words in (*other, "other weights", "SHA-256"):
        assert words in refused.stderr.splitlines()[-1]
    shape = ("the plan was made for", str(tiny_folder), "name the model that it was made for")
    assert_refused(export(plan, work / "other-shape"), *shape, "other sizes")
    assert tree(work) == before


def test_a_plan_of_another_version(pruned: Path, tiny_folder: Path, work: Path) -> None:
    tensors, record = read_tensors(pruned / "plan.safetensors")
    write_tensors(work / "new.safetensors", tensors, {**record, "version": PLAN_VERSION + 1})
    words = (f"version {PLAN_VERSION + 1}", f"version {PLAN_VERSION}", "or compress again")
    assert_refused(export(work / "new.safetensors", tiny_folder), "new.safetensors", *words)
    assert not (work / "out").exists()


def test_what_is_no_plan(pruned: Path, tiny_folder: Path, work: Path) -> None:
    tensors, record = read_tensors(pruned / "plan.safetensors")
    write_tensors(work / "short.safetensors", {**tensors, "mask": tensors["mask"][1:]}, record)
    before = tree(work)
    for name, words in {
        "nowhere.safetensors": ("no file", "plan.safetensors"),
        "text.txt": ("cannot be read", "plan.safetensors"),
        "short.safetensors": ("is damaged", "fetch it again"),
    }.items():
        assert_refused(export(work / name, tiny_folder), name, *words)
    weights = tiny_folder / "model.safetensors"
    assert_refused(export(weights, tiny_folder), "is not a plan", "plan.safetensors that compress")
    assert tree(work) == before


def test_overwrite_knows_a_checkpoint_when_it_sees_one(pruned: Path, work: Path) -> None:
    plan, model = pruned / "plan.safetensors", work / "model"
    shutil.copytree(Path(json.loads((pruned / "compress_config.json").read_text())["model"]), model)
    (work / "web").mkdir()
    (work / "web/manifest.json").write_text('{"name": "a page"}')
    (pruned / "notes.txt").write_text("mine")
    before = tree(work)

    def onto(output: str) -> Ended:
        return grasp_deploy("export", plan, "--model", model, "-o", output, "--overwrite")

    assert_refused(onto("web"), "something else than a pruned checkpoint", "manifest.json")
    assert_refused(onto("pruned"), "something else than a pruned checkpoint", "notes.txt")
    assert_refused(onto("model"), "something else than a pruned checkpoint")
    assert tree(work) == before


def test_an_export_that_is_at_work_there(pruned: Path, tiny_folder: Path, work: Path) -> None:
    with (work / ".out.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = export(pruned / "plan.safetensors", tiny_folder)
        assert_refused(refused, "another run is at work on out", "wait for it")
    assert export(pruned / "plan.safetensors", tiny_folder).code == 0
    assert not list(work.glob(".out*"))


def test_what_a_stopped_replacement_left_is_put_back(pruned: Path, work: Path) -> None:
    before = tree(pruned)
    pruned.rename(work / ".pruned.replaced")
    with pytest.raises(InputError, match="the output pruned exists"):
        refuse_existing(Path("pruned"), overwrite=False)
    assert tree(pruned) == before
