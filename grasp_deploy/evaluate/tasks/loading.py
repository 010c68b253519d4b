"""Tasks by lm-eval's names, whose items the hub has, and tasks of local files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from grasp_deploy.data.corpora import check_reachable
from grasp_deploy.errors import InputError, first_line
from grasp_deploy.evaluate.tasks.accuracy import METRICS
from grasp_deploy.evaluate.tasks.harness import silent
from grasp_deploy.evaluate.tasks.local_items import TaskFile, read_task_file

Loaded = Mapping[str, Any]  # lm-eval's: "tasks" and "groups" by name


def load_tasks(names: Sequence[str], files: Sequence[Path]) -> dict[str, Loaded]:
    """Load tasks for `harness.run_task`: those of lm-eval's names, then those of the files.

    Raises InputError for a task that is unknown, out of reach or without an accuracy, and for a
    file without items.
    """
    specs: dict[str, Any] = {name: name for name in names}
    specs |= {task.name: _spec(task) for task in map(read_task_file, files)}
    if names:
        _check_known(names)
        check_reachable(f"items of {', '.join(names)}", None, "give a local --task-file")
    return {name: _load(name, spec, _manager(bool(names))) for name, spec in specs.items()}


def check_names(names: Sequence[str], files: Sequence[Path]) -> None:
    """InputError if no task is named, or one twice; a file's task is called after the file."""
    asked = [*names, *(path.stem for path in files)]
    if not asked:
        raise InputError("no task is named: give --tasks, --preset or --task-file")
    twice = [name for name in asked if asked.count(name) > 1]
    if twice:
        raise InputError(f"task {twice[0]} is named twice: name each once, or rename a file")


@cache
def _manager(include_defaults: bool) -> Any:
    """lm-eval's index of its own tasks, if asked for: thousands of files are parsed for it."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=include_defaults)


def _check_known(names: Sequence[str]) -> None:
    known = _manager(True).all_tasks
    for name in names:
        if name not in known:
            close = ", ".join(get_close_matches(name, known, n=3))
            hint = f"did you mean {close}?" if close else "lm-eval ls tasks lists them"
            raise InputError(f"lm-eval has no task {name!r}: {hint}")


def _load(name: str, spec: Any, manager: Any) -> Loaded:
    try:
        with silent():  # it explains custom_dataset
            loaded: Loaded = manager.load([spec])
    except Exception as error:  # of datasets, the hub or a task's own code
        raise InputError(
            f"task {name} cannot be loaded ({type(error).__name__}: {first_line(error)}): its "
            "items come from the hub; check the network, or give a local --task-file"
        ) from error
    for task_name, task in loaded["tasks"].items():
        metrics = task.aggregation()
        if not metrics.keys() & set(METRICS):
            raise InputError(
                f"task {task_name} has no accuracy (its metrics: {', '.join(metrics)}): name a "
                f"task with one of {', '.join(METRICS)}"
            )
    return loaded


def _spec(task_file: TaskFile) -> dict[str, Any]:
    """lm-eval's config of a task with a file's items; its few-shot examples are other items."""
    from datasets import Dataset

    metrics = ["acc"] if task_file.choices_first else ["acc", "acc_norm"]
    # lm-eval takes an index where the text belongs to mean that the choices come first.
    text, target = ("gold", "text") if task_file.choices_first else ("text", "gold")
    return {
        "task": task_file.name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(task_file.items)},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": text,
        "doc_to_choice": "choices",
        "doc_to_target": target,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in metrics
        ],
    }
