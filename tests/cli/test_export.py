"""`export`: the same weights from a plan, and no others."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import INSPECTED, Ended, assert_refused, grasp_deploy, tree
from tests.tiny import save_tiny

WEIGHTS = "model.safetensors"


def export(plan: Path, model: Path, *options: str) -> Ended:
    return grasp_deploy("export", plan, "--model", model, "-o", "out", *options)


def test_export_repeats_the_weights(pruned: Path, tiny_folder: Path, work: Path) -> None:
    ended = export(pruned / "plan.grasp", tiny_folder, "--json")
    assert json.loads(ended.stdout).keys() >= INSPECTED
    names = {path.name for path in pruned.iterdir()} - {"metrics.jsonl", "manifest.json"}
    assert names == {path.name for path in (work / "out").iterdir()} - {"manifest.json"}
    for name in names:
        assert (work / "out" / name).read_bytes() == (pruned / name).read_bytes(), name


def test_numbers_that_are_not_finite_are_not_written(
    pruned: Path, tiny_folder: Path, work: Path
) -> None:
    """The damaged weights are those of the plan, by their SHA-256."""
    model = Path(shutil.copytree(tiny_folder, work / "model"))
    tensors = load_file(model / WEIGHTS)
    tensors["model.norm.weight"][0] = float("inf")
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    plan, record = read_tensors(pruned / "plan.grasp")
    write_tensors(work / "p.safetensors", plan, {**record, "weight_hashes": file_hashes(model)})
    before = tree(work)
    refused = export(work / "p.safetensors", model)
    assert_refused(refused, "model.norm.weight would hold numbers that are not finite", "again")
    assert tree(work) == before


def test_weights_of_another_model_are_refused_while_they_are_read(pruned: Path, work: Path) -> None:
    save_tiny("llama", work / "same-shape", seed=1)
    before = tree(work)
    refused = export(pruned / "plan.grasp", work / "same-shape")
    assert refused.code == 2 and "other weights" in refused.stderr.splitlines()[-1]
    assert tree(work) == before


def test_the_base_models_id_goes_into_plan_and_card(pruned: Path, tiny_folder: Path) -> None:
    assert export(pruned / "plan.grasp", tiny_folder, "--base-model-id", "org/name").code == 0
    assert Path("out/README.md").read_text().startswith("---\nbase_model: org/name\n")
    assert grasp_deploy("verify", "out").code == 0
