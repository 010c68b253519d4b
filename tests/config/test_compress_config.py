"""The config: one option at a time, all problems together, and its JSON form."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError


def test_json_round_trip() -> None:
    config = CompressConfig("m", weights="9GiB", rounds=3, tensor_parallel=2)
    stored = json.loads(config.to_json())
    assert CompressConfig.from_dict(stored, "the file") == config
    assert CompressConfig.from_dict(stored | {"own_temperature": 1.0}, "an older one") == config
    with pytest.raises(InputError, match=r"does not know \(own_temperature\): make it again"):
        CompressConfig.from_dict(stored | {"own_temperature": 2.0}, "an older one")
    assert config.cost_model == "parameters"
    assert config.multiples() == (2, 2)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("mine.jsonl", ("mine.jsonl", "self")),
        (["selfish.txt=3", "c4@train"], ("selfish.txt=3", "c4@train", "self")),
        (["c4", "self=0"], ("c4", "self=0")),
        (["self:asks.txt@[:9]=2", "c4"], ("self:asks.txt@[:9]=2", "c4")),
        ([], ("self",)),
    ],
)
def test_the_models_own_text_is_beside_what_is_given(given: Any, read: tuple[str, ...]) -> None:
    config = CompressConfig("m", keep=0.5, calibration=given)
    assert replace(config, seed=1).calibration == config.calibration == read
    assert config.as_dict()["calibration"] == list(read), "what is recorded says what was read"
    with pytest.raises(InputError, match=r"--calibration \[3\] is not allowed"):
        CompressConfig("m", keep=0.5, calibration=[3])  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [Path("a.txt"), [Path("a.txt")]])
def test_paths_stand_for_their_names(path: Any) -> None:
    model: Any = Path("m")
    named = CompressConfig("m", keep=0.5, calibration=("a.txt",))
    assert CompressConfig(model, keep=0.5, calibration=path) == named


def test_numbers_of_numpy_are_numbers() -> None:
    given: Any = {"family": np.array([0.75, 0.5]), "seed": np.int64(3), "compensation": np.True_}
    config = CompressConfig("m", keep=np.float64(0.5), **given)
    assert config == CompressConfig("m", keep=0.5, family=(0.75, 0.5), seed=3)
    assert type(config.keep) is float and json.loads(config.to_json())["family"] == [0.75, 0.5]


def test_the_budget_of_a_family_is_its_last_unless_one_is_named() -> None:
    assert CompressConfig("m", family=(0.8, 0.6)).keep == 0.6
    assert CompressConfig("m", family=(0.8, 0.6), keep=0.8).keep == 0.8
    for wrong in ({"family": (0.6, 0.8)}, {"family": (0.8, 0.6), "keep": 0.7}):
        with pytest.raises(InputError, match="family"):
            CompressConfig("m", **wrong)


def test_every_stage_follows_the_number_of_sequences() -> None:
    read = [
        [CompressConfig("m", keep=0.5, sequences=count).sequences_of(stage) for count in (64, 512)]
        for stage in ("criterion", "compensation")
    ]
    assert read == [[16, 64], [32, 256]]


@pytest.mark.parametrize(
    ("channels", "multiple"),
    [(11008, 128), (4864, 128), (1536, 64), (704, 32), (192, 8), (129, 1), (96, 1)],
)
def test_widths_are_aligned_where_many_steps_are_left(channels: int, multiple: int) -> None:
    assert CompressConfig("m", keep=0.5).multiples(channels) == (multiple, 1)
    assert CompressConfig("m", keep=0.5, ffn_multiple=1).multiples(channels) == (1, 1)
