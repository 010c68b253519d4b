"""Adapters of the dense model, cut: exact where the plan makes all weights, and what is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.checkpoint.write.adapter import LOSES, cut_adapter
from grasp_deploy.checkpoint.write.export import export
from tests.checkpoint.test_equivalence import logits, random_plan
from tests.cli.command import assert_refused, document, edit_json, grasp_deploy, tree
from tests.conftest import MakeOnce
from tests.tiny import STEMS, save_tiny

peft = pytest.importorskip("peft", reason="peft is missing")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SEVEN = [name.rpartition(".")[2] for name in LOSES]
COMMAND = ("adapter", "adapter", "--plan", "pruned", "-o", "cut")
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def adapted(model: nn.Module, folder: Path, **settings: Any) -> Any:
    """The model with a random adapter, which is written to a folder."""
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": SEVEN, "init_lora_weights": False}
    torch.manual_seed(0)
    made = peft.get_peft_model(model, peft.LoraConfig(**{**chosen, **settings}))
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("family", sorted({*STEMS} - {"qwen3_moe"}))
@pytest.mark.parametrize(
    "settings",
    [
        {
            "use_rslora": True,
            "rank_pattern": {"^model.layers.0.mlp.up_proj": 2, "q_proj": 6, "1.mlp.up_proj": 3},
        },
        {"target_modules": r".*\.1\.(self_attn.o|mlp.down)_proj", "alpha_pattern": {"o_proj": 40}},
    ],
)
def test_it_is_what_pruning_the_merged_model_gives(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    base, merged, pruned, cut = (tmp_path / name for name in ("base", "merged", "pruned", "cut"))
    dense = save_tiny(family, base)
    plan = random_plan(base)
    plan = replace(plan, norm_scales=0.5 + torch.rand(7, dense.config.hidden_size))
    export(plan, base, pruned)
    plain = logits(load(pruned))
    model = adapted(dense, tmp_path / "adapter", **settings)
    *_, is_exact = cut_adapter(tmp_path / "adapter", pruned, cut)
    assert is_exact
    shutil.copytree(base, merged)
    model.merge_and_unload().save_pretrained(merged)
    hashes = {**plan.provenance, "weight_hashes": file_hashes(merged)}
    export(replace(plan, provenance=hashes), merged, tmp_path / "expected")
    expected = logits(load(tmp_path / "expected"))
    found = logits(peft.PeftModel.from_pretrained(load(pruned), cut).eval())
    assert (found - expected).abs().max() < 1e-4 * (expected - plain).abs().max()
    assert (expected - plain).abs().max() > 0.1


def make_world(folder: Path) -> None:
    """A dense model, a checkpoint that a plan makes of it, and an adapter."""
    dense = save_tiny("llama", folder / "dense")
    export(random_plan(folder / "dense"), folder / "dense", folder / "pruned")
    adapted(dense, folder / "adapter")


@pytest.fixture
def work(make_once: MakeOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in, with a copy of that world."""
    shutil.copytree(make_once("adapter", make_world), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_the_command(work: None) -> None:
    told = grasp_deploy(*COMMAND)
    assert told.code == 0 and "wrote cut, 21 matrices cut; serve it" in told.stdout
    assert "approximation" not in told.stdout and "--max-lora-rank" not in told.stdout
    stated = json.loads(Path("cut", CONFIG).read_text())
    assert stated["base_model_name_or_path"] == "pruned"
    assert stated["target_modules"] == sorted(SEVEN)
    assert_refused(grasp_deploy(*COMMAND), "the output cut exists")
    told = grasp_deploy(*COMMAND[:3], "pruned/plan.grasp", "-o", "my cut")
    assert "serve pruned -- --enable-lora --lora-modules 'NAME=my cut'" in told.stdout


def test_the_command_makes_room_for_ranks_over_16(work: None) -> None:
    adapted(load(Path("dense")), Path("adapter"), rank_pattern={"up_proj": 33})
    edit_json(Path("adapter", CONFIG), rank_pattern={"up_proj": 33, "absent_proj": 65})
    assert "--max-loras 2 --max-lora-rank 128" in grasp_deploy(*COMMAND).stdout


def test_of_refitted_weights_it_is_called_an_approximation(
    demo_model: Path, demo_checkpoint: Path, tmp_path: Path
) -> None:
    adapted(load(demo_model), tmp_path / "adapter")
    command = ("adapter", tmp_path / "adapter", "--plan", demo_checkpoint, "-o")
    told = grasp_deploy(*command, tmp_path / "cut")
    assert f"an approximation: weights of {demo_checkpoint} were" in told.stdout.replace("\n", " ")
    assert document(*command, tmp_path / "again", "--json")["exact"] is False
    assert tree(tmp_path / "cut") == tree(tmp_path / "again")


Tensors = dict[str, Tensor]


def with_tensors(change: Callable[[Tensors], object]) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return changed


def says(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit_json(folder / CONFIG, **changes)


def is_foreign(name: str) -> Callable[[Path], object]:
    return with_tensors(lambda tensors: tensors.update({name: tensors.pop(FIRST)}))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "DoRA": (says(use_dora=True), "use_dora = True: only plain LoRA on"),
    "whole modules": (says(modules_to_save=["lm_head"]), "modules_to_save = ['lm_head']"),
    "biases": (says(bias="all"), "bias: Invalid enum value 'all'"),
    "biases of B": (says(lora_bias=True), "lora_bias = True"),
    "another kind": (says(peft_type="LOHA"), "peft_type: Invalid enum value 'LOHA'"),
    "PiSSA": (says(init_lora_weights="pissa"), "init_lora_weights: Invalid enum value 'pissa'"),
    "no rank": (says(r=0), "r: Expected `int` >= 1"),
    "an expression": (says(rank_pattern={"(a+)+": 2}), "rank_pattern: Expected `str` matching"),
    "another rank": (says(r=8), "has {'A': (4,"),
    "another rank there": (says(rank_pattern={"up_proj": 2}), "up_proj has"),
    "no config": (lambda folder: (folder / CONFIG).unlink(), "there is no file"),
    "pickled": (
        lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"),
        "save the adapter again with PEFT, as safetensors",
    ),
    "cut short": (
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8]),
        "cannot be read",
    ),
    "half a pair": (with_tensors(lambda tensors: tensors.pop(FIRST)), "q_proj has {'B':"),
    "nothing": (with_tensors(dict.clear), "holds no tensors"),
    "embeddings": (
        is_foreign("base_model.model.model.embed_tokens.lora_embedding_A"),
        "embed_tokens.lora_embedding_A in float32, which the plan's model lacks or no plan cuts",
    ),
    "a head": (is_foreign("base_model.model.lm_head.lora_A.weight"), "lm_head.lora_A.weight in"),
    "a later layer": (is_foreign(FIRST.replace(".0.", ".99.")), "layers.99.self_attn.q_proj"),
    "whole numbers": (
        with_tensors(lambda tensors: tensors.update({FIRST: tensors[FIRST].int()})),
        "q_proj.lora_A.weight in int32",
    ),
    "not finite": (
        with_tensors(lambda tensors: tensors[FIRST].fill_(torch.nan)),
        f"{FIRST} would hold numbers that are not finite",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_in_one_line(name: str, work: None) -> None:
    damage, words = REFUSED[name]
    damage(Path("adapter"))
    before = tree(Path.cwd())
    assert_refused(grasp_deploy(*COMMAND), words)
    assert tree(Path.cwd()) == before


def test_plans_of_other_models(work: None, demo_model: Path) -> None:
    save_tiny("llama", Path("narrow"), hidden_size=32)
    save_tiny("llama", Path("flat"), num_hidden_layers=2)
    for name in ("narrow", "flat"):
        export(random_plan(Path(name)), name, f"{name}-pruned")
    shutil.copytree("pruned", "other")
    load_plan(Path("flat-pruned", PLAN_FILE)).save(Path("other", PLAN_FILE))
    for folder, words in {
        str(demo_model): "holds no pruned checkpoint",
        "narrow-pruned": "name an adapter of that model, or fetch it again",
        "flat-pruned": "layers.2.mlp.down_proj.lora_A.weight in float32, which the plan's model",
        "other": f"other/{PLAN_FILE} is the plan of another model than other holds",
    }.items():
        assert_refused(grasp_deploy("adapter", "adapter", "--plan", folder, "-o", "out"), words)
