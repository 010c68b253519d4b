"""The chain that users rely on: gated dense = sliced = reloaded = reloaded without the package.

Served by vLLM is the last link: tests/vllm_plugin and tests/test_served.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import Plan, load_plan
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.budget import unit_table
from grasp_deploy.pruning.gates import gated
from tests.tiny import VARIANTS, save_tiny

TOLERANCE = 1e-4
IDS = torch.randint(256, (4, 24), generator=torch.Generator().manual_seed(3))


def random_plan(directory: Path, seed: int = 0) -> Plan:
    """A plan with a random mask and random scales for the model in a folder."""
    units = unit_table(model_shape(read_config(directory)))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(units.size, generator=generator) < 0.6
    for layer in range(units.layers):  # at least one unit of each kind
        mask[units.ffn(layer).start] = mask[units.kv(layer).start] = True
    scales = torch.where(mask, 0.5 + torch.rand(units.size, generator=generator), 1.0)
    provenance = {
        "model": str(directory),
        "revision": None,
        "weight_hashes": file_hashes(directory),
        "dense_layers": list(zip(units.ffn_channels, units.kv_groups, strict=True)),
        "cost_model": "parameters",
        "budget": {"limit": 1.0, "kept_cost": 1.0, "total_cost": 2.0},
        "config": {"model": str(directory)},
        "calibration": {
            "source": "text",
            "sequences": 1,
            "sequence_length": 2,
            "heldout_sequences": 0,
        },
        "losses": {"heldout_dense": None, "heldout_pruned": None},
        "versions": {"grasp_deploy": "0"},
    }
    return Plan(torch.zeros(units.size), mask, scales, provenance)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("name", VARIANTS)
def test_gated_sliced_reloaded_and_loaded_without_the_package_agree(
    name: str, tmp_path: Path
) -> None:
    base, output = tmp_path / "base", tmp_path / "pruned"
    dense = save_tiny(directory=base, **VARIANTS[name])
    plan = random_plan(base)
    shape = model_shape(read_config(base))
    units, width = unit_table(shape), shape.query_heads_per_group * shape.head_dim
    with gated(dense, units, width) as gates:
        gates.assign(plan.mask * plan.scales)
        expected = logits(dense)
    export(plan, base, output)
    # Removing units matters here, or the comparison would prove nothing.
    assert (expected - logits(dense)).abs().max() > 0.1

    assert (logits(load(output)) - expected).abs().max() <= TOLERANCE
    assert (logits_without_package(output, tmp_path) - expected).abs().max() <= TOLERANCE


def logits_without_package(directory: Path, folder: Path) -> torch.Tensor:
    """Logits from an interpreter that cannot import grasp_deploy."""
    program = f"""
import sys, torch
sys.modules["grasp_deploy"] = None  # any import of it fails
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(directory)!r}, trust_remote_code=True)
ids = torch.randint(256, (4, 24), generator=torch.Generator().manual_seed(3))
from safetensors.torch import save_file
with torch.no_grad():
    save_file({{"logits": model.eval()(input_ids=ids).logits}}, {str(folder / "logits")!r})
"""
    environment = {"HF_HOME": str(folder / "hf"), "PATH": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd=folder)
    return load_file(folder / "logits")["logits"]


def test_export_from_the_plan_gives_the_same_bytes(
    demo_checkpoint: Path, demo_model: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    export(load_plan(demo_checkpoint / "plan.safetensors"), demo_model, again)
    hashes = [
        json.loads((folder / "manifest.json").read_text())["sha256"]
        for folder in (demo_checkpoint, again)
    ]
    assert hashes[0].pop("metrics.jsonl")  # learning leaves its metrics, a plan has none
    assert hashes[0] == hashes[1]


def test_many_shards_hold_the_same_model(
    demo_checkpoint: Path, demo_model: Path, tmp_path: Path
) -> None:
    sharded = tmp_path / "sharded"
    plan = load_plan(demo_checkpoint / "plan.safetensors")
    export(plan, demo_model, sharded, shard_bytes=1_000_000)
    files = sorted(path.name for path in sharded.glob("*.safetensors") if "model" in path.name)
    assert len(files) >= 4
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == files
    whole = load_file(demo_checkpoint / "model.safetensors")
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(sharded / file)[name], whole[name])
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in whole.values())
    assert AutoModelForCausalLM.from_pretrained(sharded).dtype == torch.bfloat16
