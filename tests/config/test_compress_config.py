"""The config: one option at a time, all problems together, and its JSON form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.config.compress_config import CompressConfig, read_config_file
from grasp_deploy.errors import InputError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 0}, "--keep 0 is not a number above 0 and at most 1"),
        ({"keep": 60}, "at most 1: for 60 % write 0.6"),
        ({"keep": "0.6"}, "--keep '0.6' is not a number"),
        ({"keep": float("nan")}, "--keep nan is not a number"),
        ({"sequences": True}, "--sequences True is not a whole number from 1 to 10^12"),
        ({"sequences": 10**20}, "is not a whole number from 1 to 10^12"),
        ({"sequence_length": 1}, "--sequence-length 1 is not a whole number from 2"),
        ({"seed": 2**32}, "--seed 4294967296 is not a whole number from 0 to 4294967295"),
        ({"temperature": 1e-300}, "--set temperature=1e-300 is not a number from 1e-06 to 1000000"),
        ({"gate_site": "queries"}, "'queries' is not one of outputs, keys-values"),
        ({"compensation": 1}, "--set compensation=1 is not true or false"),
        ({"model": "x\udcff"}, "is not UTF-8"),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        CompressConfig(**{"model": "m", "keep": 0.5, **options})
    assert words in str(error.value)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InputError, match=r"--keep 2 .*; --set epochs=0 .*; .*ranking='luck' "):
        CompressConfig("m", keep=2, epochs=0, ranking="luck")  # type: ignore[arg-type]


def test_json_round_trip(tmp_path: Path) -> None:
    config = CompressConfig("m", weights="9GiB", rounds=3, tensor_parallel=2)
    (tmp_path / "config.json").write_text(config.to_json())
    stored = read_config_file(tmp_path / "config.json")
    assert CompressConfig.from_dict(stored, "the file") == config
    assert config.cost_model == "parameters"
    assert config.effective_multiples == (2, 2)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "cannot be read"), ("[]", "JSON object"), (None, "compress_config")]
)
def test_files_that_hold_no_options(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_config_file(path)


def test_unknown_and_missing_keys_name_the_file() -> None:
    with pytest.raises(InputError, match="the file has unknown keys keeep: the known ones are"):
        CompressConfig.from_dict(json.loads('{"model": "m", "keeep": 1}'), "the file")
    with pytest.raises(InputError, match="the file names no model"):
        CompressConfig.from_dict({"keep": 0.5}, "the file")
