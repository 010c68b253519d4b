"""The callback by which long work reports how far it has come."""

from collections.abc import Callable
from itertools import count
from typing import Any

OnProgress = Callable[[dict[str, Any]], None]  # a row of metrics: stage, step, steps, ...
OnCount = Callable[[int, int], None]  # items done, items in all


def ignore_progress(row: dict[str, Any]) -> None:
    """Default of `on_progress`: report nothing."""


def counts_of(stage: str, on_progress: OnProgress) -> OnCount:
    """A function that reports a stage's progress, given the steps done and their total."""
    return lambda done, total: on_progress({"stage": stage, "step": done, "steps": total})


def step_counter(on_progress: OnProgress, stage: str, steps: int) -> Callable[[], None]:
    """Report step 0 now, and one more each time that the returned function is called."""
    numbers = count()

    def advance() -> None:
        on_progress({"stage": stage, "step": next(numbers), "steps": steps})

    advance()
    return advance
