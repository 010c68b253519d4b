"""A tiny model, text of its own, and the options of a compression of seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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

    folder = make_once("family-world", make)

    def config(**options: Any) -> CompressConfig:
        shared = {
            "model": str(folder / "model"),
            "calibration": (str(folder / "text.txt"), "self=0"),
            "sequences": 48,
            "sequence_length": 32,
            "device": "cpu",
        }
        return CompressConfig(**{**shared, **options})

    return config


class Killed(Exception):
    """The end of a run that nobody asked for."""


def kill_at(number: int) -> Callable[[dict[str, Any]], None]:
    """An `on_progress` that ends the run at a row of progress."""
    rows = iter(range(1, number))

    def follow(_: dict[str, Any]) -> None:
        if next(rows, None) is None:
            raise Killed

    return follow
