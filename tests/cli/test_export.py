"""`export`: the same weights from a plan; plans and outputs that it refuses."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import refuse_existing
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import INSPECTED, Ended, assert_refused, grasp_deploy, tree
from tests.tiny import save_tiny


def export(plan: Path, model: Path, *options: str) -> Ended:
    return grasp_deploy("export", plan, "--model", model, "-o", "out", *options)


def test_export_repeats_the_weights(pruned: Path, tiny_folder: Path, work: Path) -> None:
    ended = export(pruned / "plan.grasp", tiny_folder, "--json")
    assert json.loads(ended.stdout).keys() >= INSPECTED
    names = {path.name for path in pruned.iterdir()} - {"metrics.jsonl", "manifest.json"}
    assert names == {path.name for path in (work / "out").iterdir()} - {"manifest.json"}
    for name in names:
        assert (work / "out" / name).read_bytes() == (pruned / name).read_bytes(), name


def test_plans_that_it_refuses(pruned: Path, tiny_folder: Path, work: Path) -> None:
    plan = pruned / "plan.grasp"
    tensors, record = read_tensors(plan)
    write_tensors(work / "short.safetensors", {**tensors, "mask": tensors["mask"][1:]}, record)
    write_tensors(work / "new.safetensors", tensors, {**record, "version": 99})
    save_tiny("llama", work / "same-shape", seed=1)
    save_tiny("llama", work / "other-shape", num_hidden_layers=2)
    before = tree(work)
    for name, words in {
        "nowhere.safetensors": ("no file", "plan.grasp"),
        "text.txt": ("cannot be read", "plan.grasp"),
        "short.safetensors": ("is damaged", "fetch it again"),
        "new.safetensors": ("version 99", "or compress again"),
    }.items():
        assert_refused(export(work / name, tiny_folder), name, *words)
    weights = tiny_folder / "model.safetensors"
    assert_refused(export(weights, tiny_folder), "is not a plan", "plan.grasp that compress")
    made_for = ("the plan was made for", str(tiny_folder))
    shape = ("other sizes", "name the model that it was made for")
    assert_refused(export(plan, work / "other-shape"), *made_for, *shape)
    refused = export(plan, work / "same-shape")  # hashed while it is read, behind progress
    assert refused.code == 2
    for word in (*made_for, "other weights", "SHA-256", "name the same model and revision"):
        assert word in refused.stderr.splitlines()[-1]
    assert tree(work) == before


def test_the_base_models_id_goes_into_plan_and_card(pruned: Path, tiny_folder: Path) -> None:
    plan = pruned / "plan.grasp"
    refused = export(plan, tiny_folder, "--base-model-id", "a b")
    assert_refused(refused, "--base-model-id 'a b' is not allowed", "a hub id, ORG/NAME")
    assert export(plan, tiny_folder, "--base-model-id", "org/name").code == 0
    assert Path("out/README.md").read_text().startswith("---\nbase_model: org/name\n")
    assert grasp_deploy("verify", "out").code == 0


def test_overwrite_knows_a_checkpoint_when_it_sees_one(
    pruned: Path, tiny_folder: Path, work: Path
) -> None:
    model = shutil.copytree(tiny_folder, work / "model")
    (work / "web").mkdir()
    (work / "web/manifest.json").write_text('{"name": "a page"}')
    (pruned / "notes.txt").write_text("mine")
    before = tree(work)
    for output, word in {"web": "manifest.json", "pruned": "notes.txt", "model": "model"}.items():
        onto = ("-o", output, "--overwrite")
        refused = export(pruned / "plan.grasp", model, *onto)
        assert_refused(refused, "something else than a pruned checkpoint", word)
    assert tree(work) == before


def test_an_export_that_is_at_work_there(pruned: Path, tiny_folder: Path, work: Path) -> None:
    with (work / ".out.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = export(pruned / "plan.grasp", tiny_folder)
        assert_refused(refused, "another run is at work on out", "wait for it")
    assert export(pruned / "plan.grasp", tiny_folder).code == 0
    assert not list(work.glob(".out*"))


def test_what_a_stopped_replacement_left_is_put_back(pruned: Path, work: Path) -> None:
    before = tree(pruned)
    pruned.rename(work / ".pruned.replaced")
    with pytest.raises(InputError, match="the output pruned exists"):
        refuse_existing(Path("pruned"), overwrite=False)
    assert tree(pruned) == before
