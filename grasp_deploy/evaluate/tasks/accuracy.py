"""The record of `evaluate tasks`: accuracies, their average, and the change between two models.

As in the paper, LLM-Pruner and SliceGPT: `acc_norm` of a task that has it and `acc` of the others,
averaged without weights. `acc` is how often the right choice has the highest log-likelihood; in
`acc_norm` it is divided by the choice's length in characters first. Of the paper's five tasks all
but WinoGrande have it. Generated answers, as in GSM8K, count by `exact_match`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import RecordModel
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import check_models, is_number, read_record
from grasp_deploy.stats.clustered import error_of_mean, paired_error

PRESETS = {
    "paper": ("arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande"),
    "complex": ("gsm8k", "mmlu", "boolq", "sciq"),
}
METRICS = ("acc_norm", "acc", "exact_match")  # the first that a task has is its accuracy
RULE = "accuracy: acc_norm where a task has it, else acc (exact_match of generated answers)"
AVERAGE_RULE = "average: of the tasks, unweighted, as in the paper"

REMEDY = "run `grasp-deploy evaluate tasks` again, or name another record"

Cell = Mapping[str, Any]  # of one model on one task, as a TaskCell
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1 + 1e-9)]  # a mean of accuracies is rounded


class TaskModel(RecordModel, frozen=True):
    """A measured model, identified by the hashes of its weight files."""

    weight_hashes: dict[str, str]


class TaskCell(Struct):
    """One model on one task, or on a group of tasks."""

    model: str
    task: str
    metric: str  # with its filter if it has one, as in "exact_match, strict-match"
    accuracy: Share
    standard_error: Share | None
    metrics: dict[str, float]
    num_fewshot: Count | None  # None if the tasks of a group differ
    truncated: Count  # prompts that lost their beginning; at least, since a batch may count as one
    prompts_sha256: str
    items: Annotated[list[dict[str, Any]], Meta(min_length=1)]

    def __post_init__(self) -> None:
        metric = self.metric.partition(",")[0]
        figures: list[Any] = [item.get(metric) for item in self.items]
        if not all(is_number(figure) and 0 <= figure <= 1 for figure in figures):
            raise ValueError(f"an item of {self.task} has no {metric} from 0 to 1")


class TasksRecord(Struct):
    """All models on the same items of the same tasks; the first one is the baseline."""

    models: Annotated[list[TaskModel], Meta(min_length=1)]
    settings: dict[str, Any]
    cells: Annotated[list[TaskCell], Meta(min_length=1)]

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        check_models(names, [cell.model for cell in self.cells])
        tasks = [[cell.task for cell in self.cells if cell.model == name] for name in names]
        if any(of_model != tasks[0] for of_model in tasks):
            raise ValueError("its models have not run the same tasks")


def read_tasks_record(path: Path) -> dict[str, Any]:
    """Read and check a record; InputError if it is damaged or not of `evaluate tasks`."""
    record = read_record(path)
    if record["benchmark"] != "tasks":
        raise InputError(f"{path} is a record of {record['benchmark']}, not of tasks: {REMEDY}")
    typed(record, TasksRecord, path, REMEDY)
    return record


def headline(figures: Mapping[str, Any]) -> tuple[str, str]:
    """Metric and filter of a task's accuracy, from lm-eval's figures `{"acc,none": 0.5, ...}`."""
    keys = [key.split(",", 1) for key in figures if "," in key]
    found = [(name, of) for metric in METRICS for name, of in keys if name == metric]
    if not found:
        raise InputError(
            f"lm-eval states no accuracy for {figures.get('alias')} (its metrics: "
            f"{', '.join(name for name, _ in keys) or 'none'}): name a task with one of "
            f"{', '.join(METRICS)}"
        )
    return found[0]


def average(cells: Sequence[Cell]) -> dict[str, Any]:
    """Unweighted mean accuracy over the cells of one model, with its standard error.

    The tasks' errors are independent, so the variance of the mean is the sum of theirs over k².
    """
    return {
        "accuracy": statistics.fmean(cell["accuracy"] for cell in cells),
        "standard_error": error_of_mean([cell["standard_error"] for cell in cells]),
        "tasks": len(cells),
    }


def change(first: Sequence[Cell], other: Sequence[Cell]) -> tuple[float, float | None]:
    """Mean gain in accuracy of the other model on the same tasks, and its standard error.

    Both answered the same items, so the error is that of the mean difference per item (paired).
    It is smaller than that of two separate samples. None where items do not pair up.
    """
    pairs = list(zip(first, other, strict=True))
    shift = statistics.fmean(after["accuracy"] - before["accuracy"] for before, after in pairs)
    return shift, error_of_mean([_paired_error(before, after) for before, after in pairs])


def task_changes(dense: Sequence[Cell], pruned: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row for each task, from the cells of both models on the same tasks in the same order.

    Beside `task`, `metric`, `num_fewshot` and the number of `items`: `chance` (0 to 1), `dense` and
    `pruned` with `accuracy` and `standard_error`, `change` and `change_error` (null if unknown).
    """
    rows = []
    for before, after in zip(dense, pruned, strict=True):
        shift, error = change([before], [after])
        errors = [cell["standard_error"] for cell in (before, after)]
        if error is None and None not in errors:
            error = math.hypot(*errors)  # of two separate samples: larger than of pairs
        rows.append(
            {
                **{key: before[key] for key in ("task", "metric", "num_fewshot")},
                "items": len(before["items"]),
                "chance": chance(before["items"]),
                "dense": {key: before[key] for key in ("accuracy", "standard_error")},
                "pruned": {key: after[key] for key in ("accuracy", "standard_error")},
                "change": shift,
                "change_error": error,
            }
        )
    return rows


def chance(items: Sequence[Mapping[str, Any]]) -> float:
    """The accuracy of guessing, 0 to 1: one of the choices of each item; 0 where there is none."""
    choices = (len(item.get("loglikelihoods", ())) for item in items)
    return statistics.fmean(1 / count if count > 1 else 0.0 for count in choices)


def _paired_error(before: Cell, after: Cell) -> float | None:
    metric = before["metric"].partition(",")[0]
    alike = all(before[key] == after[key] for key in ("prompts_sha256", "metric"))
    figures = ([item[metric] for item in cell["items"]] for cell in (before, after))
    return paired_error(*figures) if alike else None
