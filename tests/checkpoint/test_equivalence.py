"""The chain that users rely on: gated dense = sliced = reloaded = reloaded without the package.

The last link, served by vLLM, is in tests/vllm_plugin.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.budget_options import budget_for, unit_table
from grasp_deploy.compression.result import budget_record
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.record import versions
from grasp_deploy.pruning.gates import gated, scaled_norms
from grasp_deploy.pruning.projection import project
from tests.tiny import VARIANTS, logits_of, save_tiny

pytestmark = pytest.mark.slow  # each variant is built, exported, and loaded three times

TOLERANCE = 1e-4
IDS = torch.randint(256, (4, 24), generator=torch.Generator().manual_seed(3))


def random_plan(directory: Path, **options: Any) -> Plan:
    """A plan with a random mask and random scales, of norms too, for the model in a folder."""
    config = CompressConfig(str(directory), keep=0.6, **options)
    shape = model_shape(read_config(directory))
    budget, dice = budget_for(config, shape, torch.device("cpu")), torch.Generator().manual_seed(0)
    units = budget.units
    mask = project(torch.rand(units.size, generator=dice), budget)
    scales = torch.where(mask, 0.5 + torch.rand(units.size, generator=dice), 1.0)
    text = {"sequences": 0, "sequence_length": 0, "heldout_sequences": 0}
    provenance = {
        "model": directory.name,
        "revision": None,
        "weight_hashes": file_hashes(directory),
        "dense_layers": list(zip(units.ffn_channels, units.kv_groups, strict=True)),
        "cost_model": "parameters",
        "budget": budget_record(budget, mask),
        "config": config.as_dict(),
        "calibration": {"source": "none: not learnt", **text},
        "losses": {"heldout_dense": None, "heldout_pruned": None},
        "seconds": {"gates": 0.0, "scales": 0.0},
        "versions": versions(),
    }
    norms = 0.5 + torch.rand(2 * units.layers + 1, shape.hidden_size, generator=dice)
    return Plan(mask.float(), mask, scales, provenance, norm_scales=norms)


logits = partial(logits_of, ids=IDS)


@pytest.fixture(scope="module")
def gated_logits(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, torch.Tensor]:
    """Logits of each variant's gated dense model, by the folder of its export."""
    root, expected = tmp_path_factory.mktemp("variants"), {}
    for name, arguments in VARIANTS.items():
        base, output = root / "base" / name, root / "pruned" / name
        dense = save_tiny(directory=base, **arguments)
        plan = random_plan(base)
        units = unit_table(model_shape(read_config(base)))
        assert plan.norm_scales is not None
        with gated(dense, units) as gates, scaled_norms(dense) as norms:
            gates.assign(plan.mask * plan.scales)
            norms.assign(plan.norm_scales.flatten())
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
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
ids = torch.randint(256, (4, 24), generator=torch.Generator().manual_seed(3))
logits = {}
for folder in Path(sys.argv[1]).iterdir():
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        logits[folder.name] = model.eval()(input_ids=ids).logits
    assert isinstance(AutoModel.from_pretrained(folder, trust_remote_code=True), type(model.model))
    assert type(AutoConfig.from_pretrained(folder, trust_remote_code=True)) is type(model.config)
    assert len(AutoTokenizer.from_pretrained(folder)), "which runs no code"
    model.save_pretrained(Path("again", folder.name))
try:
    AutoModelForCausalLM.from_pretrained(folder)
except (ValueError, EOFError, OSError) as error:
    assert "trust_remote_code" in str(error), error
else:
    raise AssertionError("loaded without the package and without trust_remote_code")
save_file(logits, sys.argv[2])
"""


@pytest.fixture(scope="module")
def without_package(
    gated_logits: dict[Path, torch.Tensor], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What one interpreter that cannot import grasp_deploy makes: logits, and models again."""
    folder, (first, *_) = tmp_path_factory.mktemp("without"), gated_logits
    environment = {"HF_HOME": str(folder / "hf"), "PATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", WITHOUT_PACKAGE, str(first.parent), "logits"]
    stdin = subprocess.DEVNULL  # nobody is asked for trust
    subprocess.run(command, check=True, env=environment, cwd=folder, stdin=stdin)
    return folder


@pytest.mark.parametrize("name", VARIANTS)
def test_gated_sliced_reloaded_and_loaded_or_saved_without_the_package_agree(
    name: str, gated_logits: dict[Path, torch.Tensor], without_package: Path
) -> None:
    (output,) = (folder for folder in gated_logits if folder.name == name)
    expected, reloaded = gated_logits[output], logits(load(output))
    assert (reloaded - expected).abs().max() <= TOLERANCE
    assert (load_file(without_package / "logits")[name] - expected).abs().max() <= TOLERANCE
    again = AutoModelForCausalLM.from_pretrained(without_package / "again" / name)
    assert torch.equal(logits(again), reloaded)
