"""Tasks by lm-eval's names, whose items the hub has, and tasks of local files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from grasp_deploy.data.corpora import why_unreachable
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.accuracy import check_has_accuracy
from grasp_deploy.evaluate.tasks.harness import check_installed
from grasp_deploy.evaluate.tasks.lm_eval_log import silent
from grasp_deploy.evaluate.tasks.local_items import TaskFile, read_task_file

Loaded = Mapping[str, Any]  # lm-eval's: "tasks" and "groups" by name


def load_tasks(names: Sequence[str], files: Sequence[Path]) -> dict[str, Loaded]:
    """Load tasks for `harness.run_task`: those of lm-eval's names, then those of the files.

    Raises InputError without any, for a task that is named twice, unknown, out of reach or without
    an accuracy, for a file without items, and if lm-eval is not installed.
    """
    check_installed()
    check_names(names, files)
    specs: dict[str, Any] = {task.name: _spec(task) for task in map(read_task_file, files)}
    if names:
        _check_known(names)
        _check_reachable(names)
        specs = {**{name: name for name in names}, **specs}
    manager = _manager(bool(names))
    return {name: _load(name, spec, manager) for name, spec in specs.items()}


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


def _check_reachable(names: Sequence[str]) -> None:
    import datasets
    from huggingface_hub import constants

    if datasets.config.HF_HUB_OFFLINE:  # offline mode looks in the cache alone, at once
        return
    cause = why_unreachable(constants.ENDPOINT)
    if cause is not None:
        raise InputError(
            f"the items of {', '.join(names)} cannot be fetched: {constants.ENDPOINT} is "
            f"unreachable ({cause}); give a local --task-file, or set HF_HUB_OFFLINE=1 if "
            "`datasets` has them in its cache"
        )


def _load(name: str, spec: Any, manager: Any) -> Loaded:
    try:
        with silent():  # it explains custom_dataset
            loaded: Loaded = manager.load([spec])
    except Exception as error:  # of datasets, the hub or a task's own code
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"task {name} cannot be loaded ({type(error).__name__}: {reason}): its items come from "
            "the hub; check the network, or give a local --task-file"
        ) from error
    for task_name, task in loaded["tasks"].items():
        check_has_accuracy(task_name, list(task.aggregation()))
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
