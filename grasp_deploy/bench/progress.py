"""Rows of progress: `stage`, `step` and `steps`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

OnProgress = Callable[[dict[str, Any]], None]


def ignore_progress(row: dict[str, Any]) -> None:
    """The default of `on_progress`."""


def step_counter(on_progress: OnProgress, stage: str, steps: int) -> Callable[[], None]:
    """Report step 0 now, and one more each time that the returned function is called."""
    numbers = count()

    def advance() -> None:
        on_progress({"stage": stage, "step": next(numbers), "steps": steps})

    advance()
    return advance
