"""`evaluate tasks`: accuracy on tasks, models side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.bench.options import Device, Json, Models, Output
from grasp_deploy.cli.bench.output import check_place, command_line, end
from grasp_deploy.cli.console import stderr
from grasp_deploy.errors import InputError


def tasks_command(
    models: Models,
    *,
    tasks: Annotated[
        str | None,
        typer.Option(help="lm-eval's names, such as arc_easy,piqa.", show_default=False),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="paper: arc_challenge, arc_easy, hellaswag, piqa, winogrande; complex: gsm8k, "
            "mmlu, boolq, sciq.",
            show_default=False,
        ),
    ] = None,
    task_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Local items as JSON lines: {query, choices, gold}, {context_options, "
            "continuation, gold}, or HellaSwag's own. May be repeated.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="transformers or vllm.")] = "transformers",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first items of each task.", show_default=False),
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, help="Examples in the prompt. Default: the task's own number."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests at a time. Default: 8 with transformers, vLLM's own with vllm."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Longer prompts lose their beginning. Default: 4096, or what the models take.",
        ),
    ] = None,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Let vLLM compile nothing.")
    ] = False,
    device: Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16 or float16; auto: float32 on a CPU.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the examples' choice.")] = 1234,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Accuracy on lm-eval's tasks or local items, with standard errors and the paper's average.

    The accuracy of a task is its acc_norm where it has one (choices' log-likelihoods divided by
    their lengths), else its acc; the average over tasks is unweighted. So does the paper.
    """
    names = _names(tasks, preset)
    check_place(output, "tasks")
    os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval's bars would be drawn through ours
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.evaluate.tasks.harness import check_installed
    from grasp_deploy.evaluate.tasks.run import TaskSettings, bench_tasks
    from grasp_deploy.evaluate.tasks.table import task_table
    from grasp_deploy.report.progress import stage_bars

    check_installed()
    settings = TaskSettings(
        tasks=names,
        task_files=tuple(task_file or ()),
        engine=engine,
        limit=limit,
        num_fewshot=num_fewshot,
        batch_size=batch_size,
        max_tokens=max_tokens,
        device=device,
        dtype=dtype,
        enforce_eager=enforce_eager,
        seed=seed,
    )
    chosen = bench_models(models, dtype=dtype)
    with stage_bars(stderr) as on_progress:
        record = bench_tasks(chosen, settings, command_line(), on_progress)
    end(record, output, as_json, task_table)


def _names(tasks: str | None, preset: str | None) -> tuple[str, ...]:
    """The tasks of both options, without those that both name."""
    from grasp_deploy.evaluate.tasks.accuracy import PRESETS

    if preset is not None and preset not in PRESETS:
        raise InputError(f"--preset {preset} is unknown: use {' or '.join(PRESETS)}")
    named = [name.strip() for name in tasks.split(",")] if tasks is not None else []
    if "" in named:
        raise InputError(f"--tasks {tasks!r} names nothing at one place: write it like arc_easy")
    return (*named, *(name for name in PRESETS.get(preset or "", ()) if name not in named))
