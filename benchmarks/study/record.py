"""What a record of a study must hold, what it may, and whether its parts belong together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from grasp_deploy.report.record_shape import (
    POSITIVE,
    POSITIVE_INT,
    SIGNED,
    ByName,
    OrNull,
    wrong,
    wrong_if_there,
)

ROUNDING = 1e-9  # by which what adds up to 1 may miss it
STUDY = {  # of compressions rather than of models
    "study": str,
    "dense_perplexity": ByName(POSITIVE),
    "rows": [
        {
            **{"variant": str, "keep": POSITIVE, "seed": int},
            **{"perplexity": ByName(POSITIVE), "excess_nats": ByName(SIGNED)},
            **dict.fromkeys(("kept_cost_share", "kept_ffn_share", "kept_kv_share"), float),
            **{"kept_per_layer": [[int]], "seconds": ByName(float)},
        }
    ],
}
ACCURACY = {"accuracy": float, "standard_error": OrNull(float)}
TASKS = ByName({**ACCURACY, "metric": str})
STUDY_EXTRAS = {  # what it holds where it holds it
    "dense_layers": [[POSITIVE_INT]],
    "dense_tasks": TASKS,
    "dense_task_average": ACCURACY,
}
ROW_EXTRAS = {
    "tasks": TASKS,
    "task_average": ACCURACY,
    **dict.fromkeys(("ffn_share_of_kept_cost", "kv_share_of_kept_cost"), float),
    **dict.fromkeys(("mean_kept_ffn_score", "mean_kept_kv_score"), OrNull(SIGNED)),
}
TOGETHER = (  # a row has all of these or none
    ("tasks", "task_average"),
    ("ffn_share_of_kept_cost", "kv_share_of_kept_cost"),
    ("mean_kept_ffn_score", "mean_kept_kv_score"),
)
Row = Mapping[str, Any]


def wrong_study(record: Row) -> str:
    """What is missing, of another shape or at odds in a record of a study; empty if nothing is."""
    return (
        wrong(record, STUDY, "it")
        or wrong_if_there(record, STUDY_EXTRAS, "it")
        or next(filter(None, map(_wrong_extras, range(len(record["rows"])), record["rows"])), "")
        or _unlike_rows(record)
    )


def _wrong_extras(index: int, row: Row) -> str:
    where = f"rows[{index}]"
    for keys in TOGETHER:
        missing = [key for key in keys if key not in row]
        if 0 < len(missing) < len(keys):
            return f"{where} has no {missing[0]}"
    return wrong_if_there(row, ROW_EXTRAS, where)


def _unlike_rows(record: Row) -> str:
    """Whether rows of a study are of other text or another depth than it, or are there twice."""
    dense, rows = record.get("dense_layers"), record["rows"]
    if any(len(pair) != 2 for pair in dense or ()):
        return "its dense_layers are no pairs of channels and groups"
    depth = len(dense or rows[0]["kept_per_layer"])
    if found := _wrong_average(record, "dense_tasks", "dense_task_average"):
        return f"it has {found}"
    seen = set()
    for index, row in enumerate(rows):
        found = _wrong_row(row, list(record["dense_perplexity"]), depth, dense)
        if found := found or _wrong_tasks(row, record.get("dense_tasks", {})):
            return f"rows[{index}] {found}"
        run = (row["variant"], row["keep"], row["seed"])
        if run in seen:
            return f"rows[{index}] is there twice"
        seen.add(run)
    return ""


def _wrong_row(row: Row, corpora: Sequence[str], depth: int, dense: Any) -> str:
    if any(row[key].keys() != set(corpora) for key in ("perplexity", "excess_nats")):
        return f"is not of the corpora {', '.join(corpora)}"
    if row["keep"] > 1 + ROUNDING:
        return f"keeps {row['keep']:g}, and 1 is all"
    kept = row["kept_per_layer"]
    if len(kept) != depth or any(len(pair) != 2 for pair in kept):
        return f"has a kept_per_layer that is no list of {depth} pairs"
    if dense and any(k > d for k, d in zip(_counts(kept), _counts(dense), strict=True)):
        return "keeps more of a layer than it has"
    shares = [row[key] for key in TOGETHER[1] if key in row]
    if shares and not math.isclose(sum(shares), 1.0, rel_tol=ROUNDING):
        return f"has kinds of units that make up {sum(shares):g} of what it keeps, and 1 is all"
    return ""


def _wrong_tasks(row: Row, dense: Row) -> str:
    """Whether tasks are others than the dense model's, or not averaged as they should be."""
    tasks = row.get("tasks")
    if tasks is None:
        return ""
    if {name: task["metric"] for name, task in tasks.items()} != {
        name: task["metric"] for name, task in dense.items()
    }:
        return "has not run the dense model's tasks"
    found = _wrong_average(row, "tasks", "task_average")
    return f"has {found}" if found else ""


def _wrong_average(holder: Row, tasks: str, average: str) -> str:
    """Whether an accuracy exceeds 1, or an average is not that of the tasks."""
    if (tasks in holder) != (average in holder):
        return f"no {average if tasks in holder else tasks}"
    accuracies = [task["accuracy"] for task in holder.get(tasks, {}).values()]
    if any(accuracy > 1 + ROUNDING for accuracy in accuracies):
        return f"an accuracy of {max(accuracies):g}, and 1 is all"
    if accuracies and not math.isclose(
        holder[average]["accuracy"], statistics.fmean(accuracies), abs_tol=ROUNDING
    ):
        return f"a {average} that is not that of its tasks"
    return ""


def _counts(layers: Sequence[Sequence[int]]) -> list[int]:
    return [count for pair in layers for count in pair]
