"""From the options of a budget to costs and a limit, and what the user is told if none fits."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grasp_deploy.checkpoint.footprint import Load, deployment_memory
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.checkpoint.plan import shape_keeping
from grasp_deploy.compression.budget_options import budget_for, unit_costs, unit_table
from grasp_deploy.compression.result import budget_record
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project
from tests.tiny import VARIANTS, tiny_config

SHAPE = model_shape(tiny_config("llama").to_dict())  # 3 layers, 96 channels and 2 groups each
CHANNEL, GROUP = 3 * 64, 6 * 32 * 64  # parameters


def budget(shape: ModelShape = SHAPE, **options: Any) -> Budget:
    return budget_for(CompressConfig(model="m", **options), shape, torch.device("cpu"))


def pruned_shape(budget: Budget, shape: ModelShape, seed: int = 0) -> ModelShape:
    """What is left under a random ranking."""
    p = torch.rand(budget.units.size, generator=torch.Generator().manual_seed(seed))
    return shape_keeping(shape, budget.units.kept_per_layer(project(p, budget)))


@pytest.mark.parametrize("keep", [0.565, 0.58])
def test_keep_means_the_decimal_that_was_written(keep: float) -> None:
    shape = replace(SHAPE, layers=SHAPE.layers[:1] * 25)
    exact = round(1000 * keep) * 25 * 512 // 1000
    assert keep * 25 * 512 < exact  # the product of floats is a hair under it
    assert budget(shape, keep=keep, cost="kv-bytes").limit == exact


def test_keeping_everything_keeps_every_unit() -> None:
    whole = budget(keep=1.0)
    assert bool(project(torch.rand(whole.units.size), whole).all())


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("kv_dtype", "width"), [("auto", None), ("fp8", 1)])
def test_a_deployment_fits_the_memory_that_was_asked_for(
    name: str, kv_dtype: str, width: int | None
) -> None:
    shape = model_shape(tiny_config(**VARIANTS[name]).to_dict())
    words = {"concurrency": 8, "context": 4096, "kv_dtype": kv_dtype, "overhead": "1MiB"}
    load = Load(8, 4096, width)
    dense = deployment_memory(shape, load, 2**20)
    groups = max(layer.num_key_value_heads for layer in shape.layers)
    only_ffn = shape.windows.are_mixed or groups == 1  # whose KV groups stay
    cache = load.cached_tokens(shape.windows) * shape.kv_bytes_per_token(width)  # without states
    prunable = cache * (not only_ffn) + sum(
        math.prod(size) * shape.bytes_per_parameter
        for name, size in shape.tensor_shapes().items()
        if ("mlp." if only_ffn else "_proj.") in name and "linear_attn" not in name
    )
    asked = int((dense.total_bytes - 0.4 * prunable) / 0.9)
    found = budget(shape, gpu_memory=f"{asked}B", **words)
    after = deployment_memory(pruned_shape(found, shape), load, 2**20)
    left = int(0.9 * asked) - after.total_bytes
    # Activations are counted as the dense model's. No unit is larger than a group with its cache.
    left -= dense.activation_bytes - after.activation_bytes
    assert 0 <= left <= float(found.costs.max())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_weights_fit_the_bytes_that_were_asked_for(name: str) -> None:
    shape = model_shape(tiny_config(**VARIANTS[name]).to_dict())
    asked = int(0.8 * shape.weight_bytes)
    left = asked - pruned_shape(budget(shape, weights=f"{asked}B"), shape).weight_bytes
    group = 4 * shape.head_dim * 10 * (shape.hidden_size + 1)  # no unit is larger
    assert 0 <= left < group
    with pytest.raises(InputError, match=r"weights 1GiB .* model takes [\d.]+[KM]iB: serve it"):
        budget(shape, weights="1GiB")


def test_the_kv_cache_fits_the_bytes_that_were_asked_for() -> None:
    shape = replace(SHAPE, dtype="bfloat16")
    head_bytes = 2 * 32 * shape.bytes_per_parameter
    asked = budget(shape, kv_per_token=f"{4 * head_bytes + 1}B")
    assert pruned_shape(asked, shape).kv_bytes_per_token() == 4 * head_bytes
    assert all(layer.intermediate_size == 96 for layer in pruned_shape(asked, shape).layers)


def test_units_that_are_no_target_cost_nothing_and_stay() -> None:
    shape = pruned_shape(budget(keep=0.5, targets="ffn"), SHAPE)
    assert all(layer.num_key_value_heads == 2 for layer in shape.layers)
    assert sum(layer.intermediate_size for layer in shape.layers) == 3 * 96 // 2
    shape = pruned_shape(budget(keep=0.5, targets="kv"), SHAPE)
    assert [layer.num_key_value_heads for layer in shape.layers] == [1, 1, 1]
    assert all(layer.intermediate_size == 96 for layer in shape.layers)


def test_multiples_of_the_tensor_parallel_size_join_the_others() -> None:
    both = budget(keep=0.9, tensor_parallel=2, ffn_multiple=3)
    assert (both.ffn_multiple, both.kv_multiple) == (6, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"keep": 0.001},
        {"keep": 0.001, "ffn_multiple": 7, "tensor_parallel": 2},
        {"keep": 0.001, "cost": "kv-bytes"},
        {"weights": "1KiB"},
        {"weights": "1KiB", "targets": "ffn"},
        {"kv_per_token": "700B"},
        {"gpu_memory": "2MiB", "overhead": "1B", "concurrency": 8, "context": 4096},
    ],
)
def test_the_smallest_budget_that_an_error_names_is_accepted(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"under the floor|no pruning removes") as error:
        budget(**options)
    flag, value = str(error.value).split("the smallest possible is --")[1].split()[:2]
    name = flag.replace("-", "_")
    assert name in options
    is_keep = name == "keep"
    budget(**{**options, name: float(value) if is_keep else value})
    unit = value.lstrip("0123456789.")
    number = float(value.removesuffix(unit)) - {"": 1e-4, "B": 1}.get(unit, 0.01)
    less: float | str = number if is_keep else f"{number:.2f}{unit}"
    with pytest.raises(InputError, match="under the floor"):
        budget(**{**options, name: less})


@pytest.fixture
def costs_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the working folder."""
    text = """
import torch
def by_depth(units, shape):
    depth = range(1, units.layers + 1)
    return units.spread(depth, [10 * layer for layer in depth])
def as_list(units, shape): return [1] * units.size
def short(units, shape): return torch.ones(3)
def negative(units, shape): return torch.ones(units.size).index_fill(0, torch.tensor([5]), -1)
def undefined(units, shape): return torch.full((units.size,), float("nan"))
def huge(units, shape): return [1e307] * units.size
def of_groups(units, shape): return units.spread([0.0] * units.layers, [1.0] * units.layers)
def far_apart(units, shape): return [1.0, 1e17] * (units.size // 2)
def failing(units, shape): raise RuntimeError("here")
"""
    (tmp_path / "my_costs.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_costs", raising=False)


def test_costs_of_ones_own(costs_module: None) -> None:
    def costs(function: str) -> Tensor:
        config = CompressConfig(model="m", keep=0.5, cost=f"my_costs:{function}")
        return unit_costs(config, SHAPE, unit_table(SHAPE))

    first_layer = torch.tensor([1.0] * 96 + [10.0] * 2)
    assert costs("by_depth").tolist() == torch.cat([first_layer * d for d in (1, 2, 3)]).tolist()
    assert costs("as_list").tolist() == [1.0] * 294
    assert str(Path.cwd()) not in sys.path


def test_only_channels_go_where_only_some_layers_see_a_window(costs_module: None) -> None:
    shape = model_shape(tiny_config(**VARIANTS["gemma3-sliding"]).to_dict())
    made = budget(shape, keep=0.5)
    mask = project(torch.rand(made.units.size), made)
    assert bool(mask[made.units.is_kv].all()) and float(made.cost_of(mask)) <= made.limit
    assert made.total_cost == 3 * 96 * CHANNEL
    own = {"keep": 0.5, "cost": "my_costs:of_groups"}
    for options in ({"keep": 0.5, "targets": "kv"}, {"kv_per_token": "512B"}, own):
        with pytest.raises(InputError, match="since only some layers see a window"):
            budget(shape, **options)
    uniform = model_shape(tiny_config(**VARIANTS["gemma3-full"]).to_dict())
    assert pruned_shape(budget(uniform, kv_per_token="768B"), uniform).kv_bytes_per_token() == 768


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_costs:huge", r"returned 1e\+307 for unit 0: .* to 1e\+18"),
        ("my_costs:short", r"returned shape \(3,\): .* 294 units is needed, shape \(294,\)"),
        ("my_costs:negative", "returned -1.0 for unit 5: costs are 0, or from 1e-09 "),
        ("my_costs:undefined", "returned nan for unit 0"),
        ("my_costs:far_apart", r"returned 1.0 for unit 0: .* from 1e\+08"),
        ("my_costs:failing", r"my_costs.py:13 \(RuntimeError: here\)"),
        ("my_costs:absent", "AttributeError"),
    ],
)
def test_costs_of_ones_own_that_do_not_work(
    costs_module: None, reference: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        budget(keep=0.5, cost=reference)


def test_a_mask_over_the_budget_is_a_bug() -> None:
    half = budget(keep=0.5)
    assert half.total_cost == 3 * (96 * CHANNEL + 2 * GROUP) == 2 * half.limit
    record = budget_record(half, project(torch.rand(half.units.size), half))
    assert record["kept_cost"] <= record["limit"] < record["total_cost"]
    with pytest.raises(AssertionError, match="over the budget"):
        budget_record(half, torch.ones(half.units.size))
