"""Accuracies of a checkpoint and its dense model, from records of `evaluate tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.changes import task_changes
from grasp_deploy.evaluate.tasks.record import read_tasks_record


def task_rows(paths: Sequence[Path], base: Path, directory: Path) -> list[dict[str, Any]]:
    """The rows of `task_changes` of a checkpoint and its dense model.

    The hashes of its weights identify a model. Raises InputError for a file that is not a record
    of tasks, or lacks one of the two models, and for a task that two records have.
    """
    rows: list[dict[str, Any]] = []
    for path in paths:
        record = read_tasks_record(path)
        dense = _cells(record, path, base, "the dense model")
        for row in task_changes(dense, _cells(record, path, directory, str(directory))):
            if row["task"] in [other["task"] for other in rows]:
                raise InputError(f"--record {path} has {row['task']} once more: name one of them")
            rows.append(row)
    return rows


def _cells(record: dict[str, Any], path: Path, folder: Path, what: str) -> list[dict[str, Any]]:
    hashes = file_hashes(folder)
    names = [model["name"] for model in record["models"]]
    same = [model["name"] for model in record["models"] if model["weight_hashes"] == hashes]
    if not same:
        raise InputError(
            f"--record {path} has the models {', '.join(names)}, and none of them is {what}: name "
            "a record of `grasp-deploy evaluate tasks` on the dense model and this checkpoint"
        )
    return [cell for cell in record["cells"] if cell["model"] == same[0]]
