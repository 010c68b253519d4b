"""The config: one option at a time, all problems together, and its JSON form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.config.compress_config import CompressConfig, read_config_file
from grasp_deploy.errors import InputError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 0}, "--keep 0 is not allowed: give a number above 0 and at most 1"),
        ({"keep": 60}, "at most 1, such as 0.6 for 60 %"),
        ({"keep": "0.6"}, "--keep '0.6' is not allowed: give a number"),
        ({"keep": float("nan")}, "--keep nan is not allowed"),
        (
            {"sequences": True},
            "-sequences True is not allowed: give a whole number from 1 to 1000000",
        ),
        ({"rounds": 10**20}, "give a whole number from 1 to 10^12"),
        ({"targets": "heads"}, "targets='heads' is not allowed: give one of both, ffn, kv"),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        CompressConfig(**{"model": "m", "keep": 0.5, **options})
    assert words in str(error.value)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InputError, match=r"--keep 2 .*; --set targets='luck' .*; --set rounds=0 "):
        CompressConfig("m", keep=2, rounds=0, targets="luck")  # type: ignore[arg-type]


def test_json_round_trip(tmp_path: Path) -> None:
    config = CompressConfig("m", weights="9GiB", rounds=3, tensor_parallel=2)
    (tmp_path / "config.json").write_text(config.to_json())
    stored = read_config_file(tmp_path / "config.json")
    assert CompressConfig.from_dict(stored, "the file") == config
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
    with pytest.raises(InputError, match=r"--calibration \(3,\) is not allowed"):
        CompressConfig("m", keep=0.5, calibration=[3])  # type: ignore[arg-type]


def test_what_holds_no_options_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*none.json.*compress_config"):
        read_config_file(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"the file has keys that .* \(keeep\): make it again"):
        CompressConfig.from_dict({"model": "m", "keeep": 1}, "the file")
    with pytest.raises(InputError, match="the file names no model"):
        CompressConfig.from_dict({"keep": 0.5}, "the file")


def test_every_stage_follows_the_number_of_sequences() -> None:
    read = [
        [CompressConfig("m", keep=0.5, sequences=count).sequences_of(stage) for count in (64, 512)]
        for stage in ("criterion", "gate", "compensation")
    ]
    assert read == [[16, 64], [16, 64], [32, 256]]


@pytest.mark.parametrize(
    ("channels", "multiple"),
    [(11008, 128), (4864, 128), (1536, 64), (704, 32), (192, 8), (129, 1), (96, 1)],
)
def test_widths_are_aligned_where_many_steps_are_left(channels: int, multiple: int) -> None:
    assert CompressConfig("m", keep=0.5).multiples(channels) == (multiple, 1)
    assert CompressConfig("m", keep=0.5, ffn_multiple=1).multiples(channels) == (1, 1)
