"""Rich tables of a study's accuracies on tasks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from msgspec import UNSET
from rich.table import Table
from rich.text import Text

from benchmarks.study.record import Accuracy, Row, Study, Tasks
from benchmarks.study.tables import add_rows_by_budget, chunks, variant_table
from grasp_deploy.evaluate.tasks.accuracy import AVERAGE_RULE, RULE
from grasp_deploy.evaluate.tasks.table import percent

AVERAGE = ""  # the name of the last column; no task has it
TASKS_PER_TABLE = 3


def accuracy_tables(study: Study) -> list[Table]:
    """Accuracies by variant and budget with standard errors, dense first; empty without tasks."""
    if study.dense_tasks is UNSET or study.dense_task_average is UNSET:
        return []
    dense = _columns(study.dense_tasks, study.dense_task_average)
    names = list(dense) if len(study.dense_tasks) > 1 else list(study.dense_tasks)
    tables = []
    for group in chunks(names, TASKS_PER_TABLE):
        table = variant_table(f"Accuracy on tasks, %: study of {study.study}")
        for name in group:
            table.add_column(Text(name or "average"), justify="right", overflow="fold")
        table.add_row(
            "dense", *(percent(dense[n].accuracy, dense[n].standard_error) for n in group)
        )
        table.add_section()
        add_rows_by_budget(table, study, partial(_cells, group))
        tables.append(table)
    tables[-1].caption = "\n".join(_notes(study, study.dense_tasks))
    return tables


def _columns(tasks: Tasks, average: Accuracy) -> dict[str, Accuracy]:
    return {**tasks, AVERAGE: average}


def _cells(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    columns = [
        _columns(row.tasks, row.task_average)
        for row in rows
        if row.tasks is not UNSET and row.task_average is not UNSET
    ]
    return [_cell([column[name] for column in columns]) for name in names] if columns else []


def _cell(accuracies: Sequence[Accuracy]) -> str:
    """The mean over seeds; seeds answer the same items, so their mean has the error of one."""
    errors = [a.standard_error for a in accuracies if a.standard_error is not None]
    error = statistics.fmean(errors) if len(errors) == len(accuracies) else None
    return percent(statistics.fmean(a.accuracy for a in accuracies), error)


def _notes(study: Study, tasks: Tasks) -> list[str]:
    metrics: dict[str, list[str]] = {}
    for name, task in tasks.items():
        metrics.setdefault(task.metric, []).append(name)
    seeds = max(len(study.runs(row.variant, row.keep)) for row in study.rows)
    notes = [RULE, "; ".join(f"{metric}: {', '.join(names)}" for metric, names in metrics.items())]
    if len(tasks) > 1:
        notes.append(AVERAGE_RULE)
    notes.append(
        "±: one standard error, of the choice of items" + "; means over seeds" * (seeds > 1)
    )
    if limit := study.settings.get("task_limit"):
        notes.append(f"only the first {limit} items of each task")
    return notes
