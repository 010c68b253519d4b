"""Two models of a record side by side: accuracies, chance and the change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from grasp_deploy.evaluate.tasks.accuracy import change

Cell = Mapping[str, Any]


def task_changes(dense: Sequence[Cell], pruned: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row for each task, from the cells of both models on the same tasks in the same order.

    Beside `task`, `metric`, `num_fewshot` and the number of `items`: `chance` (0 to 1), `dense` and
    `pruned` with `accuracy` and `standard_error`, `change` and `change_error` (null if unknown).
    """
    return [_row(before, after) for before, after in zip(dense, pruned, strict=True)]


def _row(before: Cell, after: Cell) -> dict[str, Any]:
    shift, error = change([before], [after])
    errors = [cell["standard_error"] for cell in (before, after)]
    if error is None and None not in errors:
        error = math.hypot(*errors)  # as of two samples, which is more than of pairs
    return {
        **{key: before[key] for key in ("task", "metric", "num_fewshot")},
        "items": len(before["items"]),
        "chance": chance(before["items"]),
        "dense": _figures(before),
        "pruned": _figures(after),
        "change": shift,
        "change_error": error,
    }


def chance(items: Sequence[Mapping[str, Any]]) -> float:
    """The accuracy of guessing, 0 to 1: one of the choices of each item; 0 of written answers."""
    choices = (len(item.get("loglikelihoods", ())) for item in items)
    return statistics.fmean(1 / count if count else 0.0 for count in choices)


def _figures(cell: Cell) -> dict[str, Any]:
    return {key: cell[key] for key in ("accuracy", "standard_error")}
