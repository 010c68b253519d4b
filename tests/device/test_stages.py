"""Every stage runs on a device that is not the CPU, and comes to what it comes to on the CPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from benchmarks.baselines import one_shot, shares
from benchmarks.baselines.one_shot import Method
from grasp_deploy.bench.engines.transformers_child import generate
from grasp_deploy.bench.prefill import prefill
from grasp_deploy.checkpoint.read.loading import load, random_model
from grasp_deploy.checkpoint.verify import WRONG, verify
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.evaluate.perplexity import measure
from grasp_deploy.healing.heal import heal
from grasp_deploy.healing.settings import HealConfig
from grasp_deploy.pruning.budget import make_budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.obs import _panel
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, freeze, learn_scores
from grasp_deploy.pruning.units import UnitTable
from tests.checkpoint.test_equivalence import random_plan
from tests.device.standin import noted
from tests.kills import written_by
from tests.tiny import VARIANTS, save_tiny, tiny_model

pytestmark = pytest.mark.slow  # every operation goes through Python: a second or more each
SHORT: dict[str, Any] = {"sequences": 6, "sequence_length": 32, "batch_size": 2}
RUNS: dict[str, dict[str, Any]] = {
    "llama": {"rounds": 2, "scale_epochs": 1},
    "qwen3": {
        "method": "benchmarks.baselines.grasprune:gumbel_topk",
        "gradient_checkpointing": True,
    },
    "mistral": {
        "method": "benchmarks.baselines.shares:flap_owl",
        "ffn_multiple": 8,
        "dtype": "bfloat16",
    },
    "qwen2": {"method": "progressive", "rounds": 2, "dtype": "float16"},
}
BASELINES: list[Method] = [one_shot.taylor_vector, one_shot.taylor_element, one_shot.taylor_gate]
BASELINES += [one_shot.flap, one_shot.wanda_structured, one_shot.obs]
IDS = torch.randint(256, (4, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Fox number {i} jumps over {i * i} lazy dogs.\n" for i in range(80)))
    return str(path)


def tiny_units(model: nn.Module) -> UnitTable:
    config: Any = model.config
    pair = config.intermediate_size, config.num_key_value_heads
    return UnitTable.of_layers([pair] * config.num_hidden_layers)


@pytest.mark.parametrize("family", RUNS)
def test_compress_and_verify(family: str, device: str, text: str, tmp_path: Path) -> None:
    """Rounds, gates, refit, scales, fold, export and the proof of the export."""
    sliding: dict[str, Any] = {"sliding_window": 8} if family == "mistral" else {}
    save_tiny(family, tmp_path / "dense", num_hidden_layers=2, **sliding)
    config = CompressConfig(
        model=str(tmp_path / "dense"), keep=0.6, calibration=(text,), **SHORT, **RUNS[family]
    )
    folders = [tmp_path / name for name in ("cpu", device)]
    results = [compress(replace(config, device=f.name), f).plan for f in folders]
    agreement = float((results[0].mask == results[1].mask).float().mean())
    assert agreement == 1 or (device == "cuda" and agreement > 0.9)
    if device != "cuda":  # bit for bit
        on_cpu, on_device = (load_file(folder / "model.safetensors") for folder in folders)
        assert [name for name in on_cpu if not torch.equal(on_cpu[name], on_device[name])] == []
    checks = list(verify(folders[1], device=torch.device(device)))
    assert [check for check in checks if check.outcome == WRONG] == []


@pytest.mark.parametrize("method", [*BASELINES, one_shot.magnitude, shares.flap_owl])
def test_scores(method: Method, device: str) -> None:
    model: nn.Module = tiny_model("qwen2", num_hidden_layers=2)  # with biases
    freeze(model)
    units, text = tiny_units(model), CalibrationText(IDS, 2)
    costs = (torch.arange(units.size) % 5 > 0).double()
    limit = 0.5 * float(costs.sum())
    expected = method(model, make_budget(units, costs, limit), text)
    scores = method(model.to(device), make_budget(units, costs, limit, device=device), text)
    assert scores.device.type == device
    assert torch.allclose(scores.cpu(), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "variant", ["llama-3-rope", "llama-biases", "mistral-sliding", "qwen3-tied"]
)
def test_a_gate_step_waits_where_it_must(variant: str, standin: str) -> None:
    model: nn.Module = tiny_model(**VARIANTS[variant], num_hidden_layers=2)
    model.to(standin)
    freeze(model)
    units = tiny_units(model)
    budget = make_budget(units, torch.ones(units.size), 0.5 * units.size, device=standin)
    schedule = Schedule(CalibrationBlocks(IDS, IDS[:0]), 1, 1, 0.01, 0)
    state = LearningState(torch.zeros(units.size, device=standin), 0.01)
    steps = learn_scores(model, budget, schedule, state, temperature=1.0)
    next(steps)
    noted.clear()
    next(steps)
    transformers = noted.pop("number: language_loss", 0)  # does the batch hold packed sequences?
    assert transformers <= 2
    assert noted == Counter(
        {
            "copy to the device: project": 2,
            "number: project": 1,
            "copy to the device: rank_in_segment": 1,
            "copy to the device: descend": 1,
            "number: finite": 1,
            "number: _backward": 1,
        }
    )


def test_no_pivot_of_obs_waits(standin: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    arguments = (inputs.T @ inputs).inverse(), torch.ones(6, 2, 2, dtype=torch.float64)
    stays = torch.zeros(6, dtype=torch.bool)
    inverse, moments, stay = (tensor.to(standin) for tensor in (*arguments, stays))
    noted.clear()
    removed, *_ = _panel(inverse, moments, stay, 4)
    assert not noted
    assert torch.equal(removed.cpu(), _panel(*arguments, stays, 4)[0])


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pruned checkpoint, beside it the dense model and text that this one wrote."""
    folder = tmp_path_factory.mktemp("models")
    dense = save_tiny("llama", folder / "dense", num_hidden_layers=2)
    (folder / "text.txt").write_text(written_by(dense, sequences=16, length=32))
    export(random_plan(folder / "dense"), folder / "dense", folder / "pruned")
    return folder / "pruned"


def test_heal(device: str, pruned: Path, tmp_path: Path) -> None:
    """Adapters, merging, losses on held-out text, and the checkpoint with its proof."""
    pytest.importorskip("peft", reason="healing needs the extra 'heal'")
    base, text = str(pruned.with_name("dense")), str(pruned.with_name("text.txt"))
    config = HealConfig(text, sequences=16, sequence_length=32, steps=4, rank=2)
    folders = [tmp_path / name for name in ("cpu", device)]
    rows: list[list[dict[str, Any]]] = [[], []]
    losses = []
    for folder, told in zip(folders, rows, strict=True):
        asked = replace(config, device=folder.name)
        healed = heal(pruned, asked, folder, model=base, on_progress=told.append)
        losses.append([healed.loss_dense, healed.loss_before, healed.loss_after])
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    if device == "cuda":
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    else:  # bit for bit
        assert (losses[1], rows[1]) == (losses[0], rows[0])
        assert [name for name in weights[0] if not torch.equal(*(w[name] for w in weights))] == []
    checks = list(verify(folders[1], base, device=torch.device(device)))
    assert [check for check in checks if check.outcome == WRONG] == []


def test_losses_side_by_side(device: str, pruned: Path) -> None:
    blocks = Blocks(IDS, TextSource("random tokens"), len(IDS))
    both = [
        measure([load(folder, device=name, dtype="float32") for folder in folders], blocks, 2)[1]
        for name in ("cpu", device)
        for folders in [(pruned.with_name("dense"), pruned)]
    ]
    assert both[1].losses == pytest.approx(both[0].losses, rel=1e-6)
    assert both[1].divergences == pytest.approx(both[0].divergences, rel=1e-4)


def test_benches_of_transformers(device: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "dense")
    model = random_model(tmp_path / "dense", device, "float32")
    first, last = generate(model, IDS.tolist(), 3)
    assert 0 < first[0] < last[0] and len(first) == len(IDS)
    assert prefill(model, IDS).logits.device.type == device
