"""Tables of a study's accuracies on tasks, where its models have run any."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.evaluate.tasks.accuracy import AVERAGE_RULE, RULE
from grasp_deploy.evaluate.tasks.table import percent
from grasp_deploy.report.study_tables import budgets, runs, variants
from grasp_deploy.report.table_layout import broken_name, fitting

AVERAGE = ""  # no task is called so
HEAD_LETTERS = 10  # as many as the figures below have
Record = Mapping[str, Any]


def accuracy_tables(record: Record) -> list[Table]:
    """Accuracies by variant and budget with their standard errors, the dense model's first.

    None where no task was run; several where one would be wider than a terminal.
    """
    dense = record.get("dense_tasks", {})
    if not dense:
        return []
    columns = [*dense, *([AVERAGE] if len(dense) > 1 else [])]
    groups = fitting(partial(_accuracy_table, record), columns)
    return [_accuracy_table(record, group, notes=group is groups[-1]) for group in groups]


def _accuracy_table(record: Record, columns: Sequence[str], notes: bool = False) -> Table:
    table = Table(
        title=Text(f"Accuracy on tasks, %: study of {record['study']}"),
        title_justify="left",
        caption="\n".join(_notes(record)) if notes else None,
        caption_justify="left",
    )
    table.add_column("variant", overflow="fold")
    for column in columns:
        table.add_column(
            Text(broken_name(column or "average", HEAD_LETTERS)), justify="right", overflow="fold"
        )
    dense = {**record["dense_tasks"], AVERAGE: record["dense_task_average"]}
    table.add_row(
        "dense", *(percent(dense[c]["accuracy"], dense[c]["standard_error"]) for c in columns)
    )
    table.add_section()
    for keep in budgets(record):
        table.add_row(Text(f"keep {keep:g}", style="bold"))
        for variant in variants(record):
            some = [row for row in runs(record, variant, keep) if "tasks" in row]
            if some:
                table.add_row(Text(variant), *(_cell(some, column) for column in columns))
        table.add_section()
    return table


def _cell(rows: Sequence[Record], column: str) -> str:
    """Seeds answer the same items, so that more of them make the items' error no smaller."""
    found = [row["tasks"][column] if column else row["task_average"] for row in rows]
    errors = [one["standard_error"] for one in found if one["standard_error"] is not None]
    error = statistics.fmean(errors) if len(errors) == len(found) else None
    return percent(statistics.fmean(one["accuracy"] for one in found), error)


def _notes(record: Record) -> list[str]:
    dense, settings = record["dense_tasks"], record["settings"]
    metrics = {metric: "" for metric in (task["metric"] for task in dense.values())}
    for metric in metrics:
        metrics[metric] = ", ".join(name for name in dense if dense[name]["metric"] == metric)
    seeds = max(len(runs(record, v, keep)) for v in variants(record) for keep in budgets(record))
    return [
        RULE,
        "; ".join(f"{metric}: {names}" for metric, names in metrics.items()),
        *([AVERAGE_RULE] if len(dense) > 1 else []),
        "±: one standard error, of the choice of items" + "; means over seeds" * (seeds > 1),
        *(
            [f"only the first {settings['task_limit']} items of each task"]
            if settings.get("task_limit")
            else []
        ),
    ]
