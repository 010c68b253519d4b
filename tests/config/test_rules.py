"""Rules across options: each broken one in words that name the options and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError

OWN = {"method": "mine:scores"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"keep": None},
            ("one budget", "got none", "--keep", "--gpu-memory, --speedup or"),
        ),
        ({"keep": None, "weights": "much"}, ("--weights 'much'", "size", "9GiB")),
        (
            {"keep": None, "weights": "9KiB", "cost": "memory", "cached_tokens": 1},
            ("--cost parameters", "drop --cost"),
        ),
        (
            {"keep": None, "weights": "9KiB", "kv_cost_factor": 2.0},
            ("--set kv-cost-factor=2.0 changes what --weights counts", "use --keep"),
        ),
        (
            {"keep": None, "kv_per_token": "1KiB", "targets": "ffn"},
            ("--set targets=ffn removes nothing", "drop one"),
        ),
        ({"cost": "flops"}, ("--cost flops is unknown", "kv-bytes", "package.module:function")),
        (
            {"cost": "latency", "batch": 8},
            ("--cost latency goes by measured times: give both",),
        ),
        ({"keep": None, "speedup": 2.0}, ("--speedup goes by measured times", "--context")),
        (
            {"keep": None, "ttft_seconds": 1.0, "cost": "parameters"},
            ("--ttft counts by --cost latency, not parameters", "drop --cost"),
        ),
        ({"batch": 8}, ("--batch 8 has no effect: --cost parameters counts no time",)),
        ({"cost": "memory"}, ("--cost memory and --cached-tokens", "both")),
        (
            {"kv_cost_factor": 2.0, "targets": "kv"},
            ("--set kv-cost-factor=2.0 with --set targets=kv changes nothing", "drop one"),
        ),
        (
            {"method": "flap"},
            ("--method flap is unknown: choose grasp, progressive or your own package.module:f",),
        ),
        (
            {**OWN, "temperature": 1.0},
            ("--set temperature=1.0 has no effect: --method mine:scores learns no gates",),
        ),
        (
            {**OWN, "scale_epochs": 0, "learning_rate": 0.1},
            ("--set learning-rate=0.1 has no effect", "learns nothing; drop --set scale-epochs=0"),
        ),
        (
            {**OWN, "rounds": 3},
            ("--set rounds=3 has no effect: --method mine:scores does not prune in rounds",),
        ),
        (
            {"compensation": False, "ridge": 0.1},
            ("--set ridge=0.1 has no effect", "drop --set compensation=false"),
        ),
    ],
)
def test_broken_rules(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        CompressConfig(**{"model": "m", "keep": 0.5, **options})
    assert [word for word in words if word not in str(error.value)] == [], error.value


@pytest.mark.parametrize(
    "options",
    [
        OWN,
        {"temperature": 1.0},
        {"cost": "memory", "cached_tokens": 0, "kv_cost_factor": 2.0},
    ],
)
def test_sound_combinations(options: dict[str, Any]) -> None:
    CompressConfig(model="m", keep=0.5, **options)
