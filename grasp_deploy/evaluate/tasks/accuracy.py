"""The accuracy of a task, the average of several, and the change between two models.

The paper's own code takes `acc_norm` of a task that has it and `acc` of the others, and averages
them without weights. LLM-Pruner and SliceGPT do the same, so their tables are comparable.
`acc` is how often the right choice has the highest log-likelihood; in `acc_norm` the log-likelihood
is divided by the choice's length in characters first. Of the paper's five tasks all but WinoGrande
have it. Answers that are generated, as in GSM8K, count by `exact_match`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from grasp_deploy.errors import InputError

PRESETS = {
    "paper": ("arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande"),
    "complex": ("gsm8k", "mmlu", "boolq", "sciq"),
}
METRICS = ("acc_norm", "acc", "exact_match")  # the first that a task has is its accuracy
RULE = "accuracy: acc_norm where a task has it, else acc (exact_match of generated answers)"
AVERAGE_RULE = "average: of the tasks, unweighted, as in the paper"


def headline(figures: Mapping[str, Any]) -> tuple[str, str]:
    """Metric and filter of a task's accuracy, from lm-eval's figures `{"acc,none": 0.5, ...}`."""
    keys = [key.split(",", 1) for key in figures if "," in key]
    for metric in METRICS:
        for name, metric_filter in keys:
            if name == metric:
                return metric, metric_filter
    raise AssertionError(f"a task without accuracy was not refused: {list(figures)}")


def check_has_accuracy(name: str, metrics: Sequence[str]) -> None:
    """InputError if none of a task's metrics is an accuracy."""
    if not set(metrics) & set(METRICS):
        raise InputError(
            f"task {name} has no accuracy (its metrics: {', '.join(metrics)}): name a task with "
            f"{', '.join(METRICS[:-1])} or {METRICS[-1]}"
        )


def average(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Unweighted mean accuracy over the cells of one model, with its standard error.

    The tasks' errors are independent, so the variance of the mean is the sum of theirs over k².
    """
    errors = [cell["standard_error"] for cell in cells]
    known = all(error is not None for error in errors)
    return {
        "accuracy": statistics.fmean(cell["accuracy"] for cell in cells),
        "standard_error": math.hypot(*errors) / len(cells) if known else None,
        "tasks": len(cells),
    }


def change(
    first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> tuple[float, float | None]:
    """Mean gain in accuracy of the other model on the same tasks, and its standard error.

    Both answered the same items, so the error is that of the mean difference per item (paired).
    It is smaller than that of two separate samples. None where items do not pair up.
    """
    shifts, errors = [], []
    for before, after in zip(first, other, strict=True):
        shifts.append(after["accuracy"] - before["accuracy"])
        errors.append(_paired_error(before, after))
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) / len(known) if len(known) == len(errors) else None
    return statistics.fmean(shifts), error


def _paired_error(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    metric = before["metric"].partition(",")[0]
    pairs = [(c["items"], c["prompts_sha256"], c["metric"]) for c in (before, after)]
    if pairs[0][1:] != pairs[1][1:] or len(pairs[0][0]) < 2:
        return None
    differences = [b[metric] - a[metric] for a, b in zip(pairs[0][0], pairs[1][0], strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))
