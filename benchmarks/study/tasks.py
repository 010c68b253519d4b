"""Accuracies of a study's models on tasks, by the package's own bench of tasks."""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.study.record import Accuracy, TaskAccuracy
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks.accuracy import average
from grasp_deploy.evaluate.tasks.harness import check_installed, check_names
from grasp_deploy.evaluate.tasks.run import bench_tasks
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.progress import OnProgress


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name tasks; none runs by default."""
    parser.add_argument("--tasks", help="lm-eval's names, such as arc_easy,piqa")
    parser.add_argument(
        "--task-file", type=Path, action="append", metavar="FILE", help="items of a task; repeat"
    )
    parser.add_argument("--task-limit", type=int, help="only the first items of each task")


def task_settings_of(options: argparse.Namespace) -> TaskSettings | None:
    """The tasks that every model is to run; None if no task is named.

    Raises InputError if lm-eval is not installed, and for unknown names or an impossible limit.
    """
    names = [name.strip() for name in options.tasks.split(",")] if options.tasks else []
    files = tuple(options.task_file or ())
    if not (names or files):
        if options.task_limit is not None:
            raise InputError("--task-limit limits no task: give --tasks or --task-file too")
        return None
    if "" in names:
        raise InputError(f"--tasks {options.tasks!r} has an empty name: write it a,b")
    if options.task_limit is not None and options.task_limit < 1:
        raise InputError(f"--task-limit {options.task_limit} leaves no item: use 1 or more")
    check_installed()
    check_names(names, files)
    return TaskSettings(tuple(names), files, limit=options.task_limit)


def recorded(tasks: TaskSettings | None) -> dict[str, Any]:
    """The settings of a record that name its tasks; empty if there are none."""
    if tasks is None:
        return {}
    return {
        "tasks": list(tasks.tasks),
        "task_files": [str(path) for path in tasks.task_files],
        "task_hashes": [sha256(path) for path in tasks.task_files],
        "task_limit": tasks.limit,
        "lm_eval": version("lm_eval"),
    }


def accuracies(
    folder: Path, tasks: TaskSettings, on_progress: OnProgress
) -> tuple[dict[str, TaskAccuracy], Accuracy]:
    """Accuracies of a model by task, and their unweighted average."""
    cells = bench_tasks(bench_models([str(folder)]), tasks, [], on_progress)["cells"]
    mean = msgspec.convert(average(cells), Accuracy)
    return {cell["task"]: msgspec.convert(cell, TaskAccuracy) for cell in cells}, mean
