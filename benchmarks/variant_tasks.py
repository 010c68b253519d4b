"""How accurate the models of a study are on tasks, by the package's own bench of tasks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.tasks.accuracy import average
from grasp_deploy.evaluate.tasks.harness import check_installed
from grasp_deploy.evaluate.tasks.loading import check_names
from grasp_deploy.evaluate.tasks.run import bench_tasks
from grasp_deploy.evaluate.tasks.settings import TaskSettings
from grasp_deploy.files.progress import OnProgress

Accuracies = dict[str, dict[str, Any]]
DTYPE = "float32"  # as perplexities are measured


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """What names the tasks; none unless asked for."""
    parser.add_argument("--tasks", help="lm-eval's names, such as arc_easy,piqa")
    parser.add_argument(
        "--task-file", type=Path, action="append", metavar="FILE", help="items of a task; repeat"
    )
    parser.add_argument("--task-limit", type=int, help="only the first items of each task")


def tasks_of(options: argparse.Namespace) -> TaskSettings | None:
    """What every model is to be run on; None where no task is named.

    Raises InputError if lm-eval is not installed, and for names or a limit that cannot be.
    """
    names = [name.strip() for name in options.tasks.split(",")] if options.tasks else []
    files = tuple(options.task_file or ())
    if not (names or files):
        if options.task_limit is not None:
            raise InputError("--task-limit is of no task: give --tasks or --task-file too")
        return None
    if "" in names:
        raise InputError(f"--tasks {options.tasks!r} names nothing at one place: write it a,b")
    if options.task_limit is not None and options.task_limit < 1:
        raise InputError(f"--task-limit {options.task_limit} leaves no item: use 1 or more")
    check_installed()
    check_names(names, files)
    return TaskSettings(tuple(names), files, limit=options.task_limit, dtype=DTYPE)


def told(tasks: TaskSettings | None) -> dict[str, Any]:
    """What a record's settings say of them; nothing where there are none."""
    if tasks is None:
        return {}
    files = [str(path) for path in tasks.task_files]
    return {"tasks": list(tasks.tasks), "task_files": files, "task_limit": tasks.limit}


def accuracies(folder: Path, tasks: TaskSettings, on_progress: OnProgress) -> Accuracies:
    """Metric, accuracy (0 to 1) and its standard error, by task."""
    cells = bench_tasks(bench_models([str(folder)], dtype=DTYPE), tasks, [], on_progress)["cells"]
    return {
        cell["task"]: {
            "metric": cell["metric"],
            "accuracy": cell["accuracy"],
            "standard_error": cell["standard_error"],
        }
        for cell in cells
    }


def average_of(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """The unweighted mean over tasks and its standard error, as everywhere in the package."""
    mean = average(list(tasks.values()))
    return {"accuracy": mean["accuracy"], "standard_error": mean["standard_error"]}
