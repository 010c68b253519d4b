"""`evaluate tasks`: accuracy on tasks, models side by side."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from grasp_deploy.cli.bench.output import command_line, write_and_print
from grasp_deploy.cli.console import stderr
from grasp_deploy.cli.options import Json, Models, RecordOutput
from grasp_deploy.cli.settings_options import takes_settings
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.settings import TaskSettings

TaskNames = Annotated[
    str | None, typer.Option("--tasks", help="lm-eval's names, such as arc_easy,piqa.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="paper: arc_challenge, arc_easy, hellaswag, piqa, winogrande; complex: gsm8k, mmlu, "
        "boolq, sciq."
    ),
]


@takes_settings(TaskSettings)
def tasks_command(
    models: Models,
    *,
    tasks: TaskNames = None,
    preset: Preset = None,
    settings: TaskSettings,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Accuracy on lm-eval's tasks or local items, with standard errors and the paper's average.

    As in the paper, the accuracy of a task is its acc_norm (log-likelihoods divided by answer
    lengths) or, without one, its acc. The average over tasks is unweighted.
    """
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.evaluate.tasks.harness import check_installed
    from grasp_deploy.evaluate.tasks.run import bench_tasks
    from grasp_deploy.evaluate.tasks.table import task_table
    from grasp_deploy.files.record import check_place
    from grasp_deploy.report.progress import stage_bars

    settings = replace(settings, tasks=_names(tasks, preset))
    check_place(output, "tasks")
    os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval's bars would interfere with ours
    check_installed()
    chosen = bench_models(models, dtype=settings.dtype)
    with stage_bars(stderr) as on_progress:
        record = bench_tasks(chosen, settings, command_line(), on_progress)
    write_and_print(record, output, as_json, task_table)


def _names(tasks: str | None, preset: str | None) -> tuple[str, ...]:
    from grasp_deploy.evaluate.tasks.accuracy import PRESETS

    if preset is not None and preset not in PRESETS:
        raise InputError(f"--preset {preset} is unknown: use {' or '.join(PRESETS)}")
    named = [name.strip() for name in tasks.split(",")] if tasks is not None else []
    if "" in named:
        raise InputError(f"--tasks {tasks!r} has an empty name: write it like arc_easy,piqa")
    return (*named, *(name for name in PRESETS.get(preset or "", ()) if name not in named))
