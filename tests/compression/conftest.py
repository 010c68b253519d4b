"""A tiny model, text of its own, and the options of a compression of seconds."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.config.compress_config import CompressConfig
from tests.conftest import MakeOnce
from tests.kills import written_by
from tests.tiny import save_tiny

MakeConfig = Callable[..., CompressConfig]


@pytest.fixture(scope="session")
def make_config(make_once: MakeOnce) -> MakeConfig:
    """Build a config of the tiny model from its budget and other options."""

    def make(folder: Path) -> None:
        model = save_tiny("llama", folder / "model")
        (folder / "text.txt").write_text(written_by(model, sequences=48, length=32))

    return partial(config_in, make_once("family-world", make))


def config_in(folder: Path, **options: Any) -> CompressConfig:
    """Of a tiny model and its text, which lie in `folder`, from the budget and other options."""
    text = str(folder / "text.txt")
    shared: dict[str, Any] = {"model": str(folder / "model"), "calibration": (text, "self=0")}
    shared |= {"sequences": 48, "sequence_length": 32, "device": "cpu"}
    return CompressConfig(**{**shared, **options})


def compressed(config: CompressConfig, output: Path) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan of a compression, and its rows of progress."""
    rows: list[dict[str, Any]] = []
    plan = compress(config, RunOptions(output, on_progress=rows.append)).plan
    return plan, rows


class Killed(Exception):
    """The end of a run that nobody asked for."""


def kill_at(number: int) -> Callable[[dict[str, Any]], None]:
    """An `on_progress` that ends the run at a row of progress."""
    rows = iter(range(1, number))

    def follow(_: dict[str, Any]) -> None:
        if next(rows, None) is None:
            raise Killed

    return follow


def kill_in(stage: str, step: int) -> Callable[[dict[str, Any]], None]:
    """An `on_progress` that ends the run at a step of a stage."""

    def follow(row: dict[str, Any]) -> None:
        if (row["stage"], row["step"]) == (stage, step):
            raise Killed

    return follow
