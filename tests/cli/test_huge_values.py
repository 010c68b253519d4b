"""Numbers and names far longer than any true one: one line, before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grasp_deploy.data.table import parse_split
from grasp_deploy.errors import InputError
from tests.cli.command import assert_refused, grasp_deploy
from tests.tiny import tiny_config

DIGITS = "1" * 5_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny_config("llama", dtype="bfloat16").to_json_file(tmp_path / "one.json")
    return tmp_path / "one.json"


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
