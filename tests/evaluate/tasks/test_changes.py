"""Two models' cells of a task: chance, the change, and its error."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grasp_deploy.evaluate.tasks.changes import chance, task_changes

FOUR, TWO = {"loglikelihoods": [-1.0] * 4}, {"loglikelihoods": [-1.0] * 2}


def cell(right: list[int], prompts: str = "same", error: float | None = 0.1) -> dict[str, Any]:
    return {
        "task": "piqa",
        "metric": "acc",
        "num_fewshot": 0,
        "accuracy": sum(right) / len(right),
        "standard_error": error,
        "prompts_sha256": prompts,
        "items": [{"item": i, "acc": float(value), **TWO} for i, value in enumerate(right)],
    }


def test_chance_is_one_of_the_choices() -> None:
    assert chance([FOUR, FOUR]) == 0.25
    assert chance([FOUR, TWO]) == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert chance([{"answer": ["42"]}]) == 0.0  # nobody guesses a written answer


def test_a_row() -> None:
    (row,) = task_changes([cell([1, 1, 1, 0])], [cell([1, 0, 1, 0])])
    assert row == {
        **{"task": "piqa", "metric": "acc", "num_fewshot": 0, "items": 4, "chance": 0.5},
        "dense": {"accuracy": 0.75, "standard_error": 0.1},
        "pruned": {"accuracy": 0.5, "standard_error": 0.1},
        "change": -0.25,
        "change_error": pytest.approx(0.25),  # of 0, -1, 0, 0: sqrt(1/4) / sqrt(4)
    }


def test_items_that_do_not_pair_up_have_the_error_of_two_samples() -> None:
    (row,) = task_changes([cell([1, 0], error=0.3)], [cell([1, 0], "others", 0.4)])
    assert row["change_error"] == pytest.approx(0.5) == pytest.approx(math.hypot(0.3, 0.4))
    (row,) = task_changes([cell([1, 0], error=None)], [cell([1, 0], "others")])
    assert row["change_error"] is None
