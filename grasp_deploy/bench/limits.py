"""Checks before anything is measured: positions of the models, and memory of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from grasp_deploy.checkpoint.read.source import positions_at
from grasp_deploy.engine.serve import available_memory_bytes
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel


def check_positions(models: Sequence[BenchModel], tokens: int, options: str) -> None:
    """InputError, naming the options to lower, for sequences longer than a model has positions."""
    for model in models:
        positions = positions_at(model.path)
        if positions is not None and tokens > positions:
            raise InputError(
                f"sequences of {tokens} tokens exceed the {positions} positions that {model.name} "
                f"was made for: lower {options}"
            )


def check_room(needed_bytes: int, what: str, remedy: str) -> None:
    """InputError if the machine's memory does not suffice: the kernel would kill some process."""
    free_bytes = available_memory_bytes()
    if needed_bytes > free_bytes:
        raise InputError(
            f"{what} {needed_bytes / 2**30:,.1f} GiB, and {free_bytes / 2**30:,.1f} GiB are free: "
            f"{remedy}"
        )
