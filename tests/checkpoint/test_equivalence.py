"""The chain that users rely on: gated dense = sliced = reloaded = reloaded without the package.

The last link, served by vLLM, is in tests/vllm_plugin and tests/engine/test_served.py.
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
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.config.compress_config import CompressConfig
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
        "config": CompressConfig(str(directory), keep=0.6).as_dict(),
        "calibration": {
            "source": "text",
            "sequences": 1,
            "sequence_length": 2,
            "heldout_sequences": 0,
        },
        "losses": {"heldout_dense": None, "heldout_pruned": None},
        "seconds": {"gates": 0.0, "scales": 0.0},
        "versions": {"grasp_deploy": "0"},
    }
    return Plan(torch.zeros(units.size), mask, scales, provenance)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.fixture(scope="module")
def gated_logits(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, torch.Tensor]:
    """Logits of each variant's gated dense model, by the folder of its export."""
    root, expected = tmp_path_factory.mktemp("variants"), {}
    for name, arguments in VARIANTS.items():
        base, output = root / "base" / name, root / "pruned" / name
        dense = save_tiny(directory=base, **arguments)
        plan = random_plan(base)
        shape = model_shape(read_config(base))
        units, width = unit_table(shape), shape.query_heads_per_group * shape.head_dim
        with gated(dense, units, width) as gates:
            gates.assign(plan.mask * plan.scales)
            expected[output] = logits(dense)
        # Removing units must matter, or the comparison would prove nothing.
        assert (expected[output] - logits(dense)).abs().max() > 0.1
        export(plan, base, output)
    return expected


# Runs where grasp_deploy cannot be imported: logits of every folder below the first argument.
WITHOUT_PACKAGE = """
import sys, torch
from pathlib import Path
sys.modules["grasp_deploy"] = None
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
ids = torch.randint(256, (4, 24), generator=torch.Generator().manual_seed(3))
logits = {}
for folder in Path(sys.argv[1]).iterdir():
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        logits[folder.name] = model.eval()(input_ids=ids).logits
save_file(logits, sys.argv[2])
"""


@pytest.fixture(scope="module")
def logits_without_package(
    gated_logits: dict[Path, torch.Tensor], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """Logits of each export from one interpreter that cannot import grasp_deploy."""
    folder, (first, *_) = tmp_path_factory.mktemp("without"), gated_logits
    environment = {"HF_HOME": str(folder / "hf"), "PATH": "", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE, str(first.parent), str(folder / "logits")],
        check=True,
        env=environment,
        cwd=folder,
    )
    return load_file(folder / "logits")


@pytest.mark.parametrize("name", VARIANTS)
def test_gated_sliced_reloaded_and_loaded_without_the_package_agree(
    name: str,
    gated_logits: dict[Path, torch.Tensor],
    logits_without_package: dict[str, torch.Tensor],
) -> None:
    (output,) = (folder for folder in gated_logits if folder.name == name)
    expected = gated_logits[output]
    assert (logits(load(output)) - expected).abs().max() <= TOLERANCE
    assert (logits_without_package[name] - expected).abs().max() <= TOLERANCE


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
