"""A budget in time: its limit and prices, what is refused, and that every mask holds it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.format.layer_kinds import Windows
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.time_budget import time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.compress_options import Times
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project
from tests.tiny import tiny_config

SHAPE = model_shape(tiny_config("llama", num_key_value_heads=4).to_dict())
LAYERS, CHANNELS, GROUPS = 3, 96, 4
DECODE = 0.010  # seconds of the dense model
FFN, KV = 0.4, 0.2  # of these; the rest is fixed


def times(ffn: float = FFN, kv: float = KV) -> Times:
    """Times on the line, where a quarter of the channels is left, and half of the groups."""
    seconds = DECODE, DECODE * (1 - 0.75 * ffn), DECODE * (1 - 0.5 * kv)
    return Times("a processor", "vllm", "2026-01-02", 8, 64, 0.25, 0.5, *seconds)


def asked(measured: Times | None = None, **options: Any) -> CompressConfig:
    return CompressConfig(model="m", batch=8, context=64, times=measured or times(), **options)


def budget_of(config: CompressConfig, shape: ModelShape = SHAPE) -> Budget:
    return budget_for(config, shape, torch.device("cpu"))


def test_the_limit_is_what_the_time_leaves_beside_the_fixed_part() -> None:
    budget = budget_of(asked(speedup=1.25))
    assert budget.total_cost == pytest.approx(1e9 * DECODE * (FFN + KV))
    assert budget.limit == pytest.approx(1e9 * DECODE * (1 / 1.25 - (1 - FFN - KV)))
    unit = budget.costs[: CHANNELS + 1]
    assert unit[0] == pytest.approx(1e9 * DECODE * FFN / (LAYERS * CHANNELS))
    assert unit[-1] == pytest.approx(1e9 * DECODE * KV / (LAYERS * GROUPS))
    share = budget_of(asked(keep=0.5, cost="latency"))
    assert share.limit == pytest.approx(1e9 * DECODE * (FFN + KV) / 2)


@pytest.mark.parametrize("targets", ["both", "ffn", "kv"])
def test_every_mask_holds_the_time(targets: str) -> None:
    config = asked(speedup=1.1, targets=targets)
    time, budget = time_budget(config), budget_of(config)
    assert time is not None
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        mask = project(torch.rand(budget.units.size, generator=generator), budget)
        record = time.record(budget.cost_of(mask), budget.total_cost)
        seconds = record["predicted_seconds"]
        assert seconds <= record["asked_seconds"] * (1 + 1e-9)
        kept = budget.units.kept_per_layer(mask)
        shares = [sum(k) / n for k, n in zip(zip(*kept, strict=True), (288, 12), strict=True)]
        assert seconds == pytest.approx(DECODE * (1 - FFN - KV + FFN * shares[0] + KV * shares[1]))


@pytest.mark.parametrize(("targets", "fixed"), [("both", "4"), ("ffn", "6"), ("kv", "8")])
def test_beyond_reach_names_the_fixed_part(targets: str, fixed: str) -> None:
    with pytest.raises(InputError, match=f"of which {fixed} ms are fixed"):
        budget_of(asked(speedup=3, targets=targets))


def test_groups_that_stay_are_fixed_and_have_no_price() -> None:
    """Where only some layers see a window; a price of the others may be lost in noise."""
    windows = replace(SHAPE, windows=Windows(8, narrow=1, wide=1))
    with pytest.raises(InputError, match="of which 6 ms are fixed"):
        budget_of(asked(speedup=3), windows)
    for options in ({"speedup": 1.1}, {"keep": 0.5, "cost": "latency"}):
        with pytest.raises(InputError, match="quieter machine"):
            budget_of(asked(times(ffn=-0.1), **options), windows)


def test_beyond_reach_names_the_largest_possible_which_is_accepted() -> None:
    with pytest.raises(InputError, match="is beyond reach: the budget") as error:
        budget_of(asked(speedup=2.4))
    most = float(str(error.value).split("the largest possible is --speedup ")[1].split()[0])
    budget_of(asked(speedup=most))
    with pytest.raises(InputError, match="beyond reach"):
        budget_of(asked(speedup=most * 1.001))


def test_times_that_make_no_budget() -> None:
    for ffn, kv in ((-0.1, -0.1), (0.8, 0.3)):  # nothing saves time, or nothing is fixed
        with pytest.raises(InputError, match=r"make no price .* on a quieter machine"):
            budget_of(asked(times(ffn, kv), speedup=1.1))
    with pytest.raises(InputError, match=r"no times were measured at batch 1 and context 64"):
        budget_of(replace(asked(speedup=1.1), batch=1))


def test_a_kind_whose_price_would_be_negative_costs_nothing() -> None:
    config = asked(times(kv=-0.1), speedup=1.1)
    time = time_budget(config)
    assert time is not None and time.kv_seconds == 0
    assert time.ffn_seconds == pytest.approx(DECODE * FFN)
    one_group = replace(times(), groups_share=1.0)  # which cannot be fewer
    time = time_budget(asked(one_group, speedup=1.1))
    assert time is not None and time.kv_seconds == 0
