"""The benches, by themselves."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Ended, grasp_deploy


def bench(*arguments: str | Path | int) -> Ended:
    """Run a bench in this process; whatever is no exit of ours goes up as it is."""
    return grasp_deploy("bench", *map(str, arguments))
