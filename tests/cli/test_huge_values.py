"""Numbers and names far longer than any true one: one line, before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grasp_deploy.cli.bench.options import int_list
from grasp_deploy.data.table import parse_split
from grasp_deploy.errors import InputError
from tests.cli.command import assert_refused, grasp_deploy
from tests.tiny import tiny_config

DIGITS = "1" * 5_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny_config("llama", dtype="bfloat16").to_json_file(tmp_path / "one.json")
    return tmp_path / "one.json"


@pytest.mark.parametrize("text", [DIGITS, "1" * 19, "0" * 30])
def test_lists_of_numbers(text: str) -> None:
    with pytest.raises(InputError, match=r"--batch .* whole number below 10"):
        int_list(f"1,{text}", "--batch")


def test_zeros_before_a_number_do_not_count() -> None:
    assert int_list("0" * 30 + "7," + "9" * 18, "--batch") == [7, 10**18 - 1]


@pytest.mark.parametrize("split", [f"train[:{DIGITS}]", f"train[-{DIGITS}%:]"])
def test_slices(split: str) -> None:
    with pytest.raises(InputError, match="is not understood"):
        parse_split(split)


def test_names_that_are_too_long(config: Path) -> None:
    options = ("--random-weights", "--predict-only", "--output", "x" * 300)
    assert_refused(grasp_deploy("bench", "kv", config, *options), "cannot write", "too long")


@pytest.mark.parametrize("positions", ["2048", [2048], -1, True, 1.5])
@pytest.mark.parametrize("bench", [("kv", "--predict-only"), ("memory",)])
def test_positions_that_are_no_number(
    config: Path, bench: tuple[str, ...], positions: object
) -> None:
    changed = json.loads(config.read_text()) | {"max_position_embeddings": positions}
    config.write_text(json.dumps(changed))
    ended = grasp_deploy("bench", *bench, config, "--random-weights")
    assert_refused(ended, "max_position_embeddings", "is no positive whole number", "mend")
