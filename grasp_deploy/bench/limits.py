"""Checks before anything is measured: positions of the models, and memory of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from grasp_deploy.checkpoint.read.source import positions_at
from grasp_deploy.engine.serve import available_memory_bytes
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel


def check_positions(models: Sequence[BenchModel], tokens: int, what: str, remedy: str) -> None:
    """InputError, naming the sequence by `what`, if it is longer than a model has positions."""
    for model in models:
        positions = positions_at(model.path)
        if positions is not None and tokens > positions:
            raise InputError(
                f"{what} exceed the {positions} positions that {model.name} was made for: {remedy}"
            )


def check_sequence(models: Sequence[BenchModel], prompt_tokens: int, new_tokens: int) -> None:
    """InputError if a prompt with its continuation is longer than a model has positions."""
    check_positions(
        models,
        prompt_tokens + new_tokens,
        f"{prompt_tokens} prompt tokens and {new_tokens} new ones",
        "lower --prompt-tokens or --new-tokens",
    )


def check_room(needed_bytes: int, what: str, remedy: str, free_bytes: int | None = None) -> None:
    """InputError if memory does not suffice; `free_bytes` defaults to that of the machine.

    Without a GPU the kernel would kill some process once memory is full.
    """
    free_bytes = available_memory_bytes() if free_bytes is None else free_bytes
    if needed_bytes > free_bytes:
        raise InputError(
            f"{what} {needed_bytes / 2**30:,.1f} GiB, and {free_bytes / 2**30:,.1f} GiB are free: "
            f"{remedy}"
        )
