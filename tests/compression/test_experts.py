"""Experts under the budget: a whole compression, and what is refused in one line."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from grasp_deploy.bench.times import with_times
from grasp_deploy.checkpoint.footprint import inspect_model
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import read_stored_model
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.write.adapter import cut_adapter
from grasp_deploy.checkpoint.write.gguf_file import write_gguf
from grasp_deploy.checkpoint.write.quantize import quantize
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.dry_run import dry_run, multiplied
from grasp_deploy.errors import InputError
from tests.compression.conftest import config_in
from tests.conftest import MakeOnce
from tests.kills import written_by
from tests.tiny import VARIANTS, save_tiny

config_of = partial(config_in, keep=0.6)


@pytest.fixture(scope="module")
def world(make_once: MakeOnce) -> Path:
    """A model in bfloat16 with experts, text of its own, and a compressed copy."""

    def make(folder: Path) -> None:
        dtype = torch.bfloat16
        model = save_tiny(directory=folder / "model", dtype=dtype, **VARIANTS["qwen3-moe"])
        (folder / "text.txt").write_text(written_by(model, sequences=48, length=32))
        compress(config_of(folder), folder / "pruned")

    return make_once("experts-world", make)


def test_the_default_method_cuts_experts_and_groups_to_a_proven_checkpoint(world: Path) -> None:
    checks = list(verify(world / "pruned", device=torch.device("cpu")))
    assert [check.outcome for check in checks] == ["proven"] * len(checks)
    assert len(checks) >= 6
    shape = read_stored_model(world / "pruned").shape
    stored = sum(path.stat().st_size for path in (world / "pruned").glob("*.safetensors"))
    tensors = load(world / "pruned").state_dict()
    assert shape.weight_bytes == 2 * sum(x.numel() for x in tensors.values()) < stored
    told = inspect_model(str(world / "pruned"))
    experts = [layer["num_experts"] for layer in told["layers"]]
    assert min(experts) >= 2 and sum(experts) < 24 and told["experts_per_token"] == 2
    assert told["dense"]["layers"][0]["num_experts"] == 8


def test_a_pruned_model_generates_whatever_the_budget_leaves_of_its_experts(world: Path) -> None:
    """At the floor each layer keeps as many as a token takes."""
    with pytest.raises(InputError, match=r"experts: 2, KV groups: 1.*--keep ([0-9.]+)") as refusal:
        compress(config_of(world, keep=0.01), world / "unmade")
    least = float(str(refusal.value).rsplit(" ", 1)[1])
    compress(config_of(world, keep=least, scale_epochs=0), world / "least")
    layers = read_stored_model(world / "least").shape.layers
    assert [layer.num_experts for layer in layers] == [2, 2, 2]
    output = load(world / "least").generate(  # type: ignore[operator]
        torch.ones(1, 4, dtype=torch.int64), max_new_tokens=4
    )
    assert output.shape[1] > 4


Refused = Callable[[Path], object]
REFUSED: dict[str, Refused] = {
    "recovery": lambda f: compress(config_of(f, recover=64), f / "no"),
    "a budget in time": lambda f: with_times(config_of(f, cost="latency", batch=1, context=8)),
    "cutting an adapter": lambda f: cut_adapter(f / "model", f / "pruned", f / "no"),
    "quantize": lambda f: quantize(f / "pruned", "fp8", f / "no"),
    "holds experts": lambda f: write_gguf(f / "pruned", f / "no", "f16"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_know_experts_is_refused(what: str, world: Path) -> None:
    with pytest.raises(InputError, match=what):
        REFUSED[what](world)
    assert not (world / "no").exists()


def test_a_dry_run_offers_one_process(world: Path) -> None:
    assert [way.processes for way in dry_run(config_of(world)).ways] == [1]


def test_a_token_is_multiplied_by_the_experts_that_it_takes(world: Path) -> None:
    shape = read_stored_model(world / "model").shape
    layers = tuple(shape.layer_of(layer.num_key_value_heads, 2) for layer in shape.layers)
    assert multiplied(shape) == multiplied(replace(shape, layers=layers))
