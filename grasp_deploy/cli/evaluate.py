"""`evaluate`: perplexity, accuracy on tasks, drift from the dense model, and the quality card."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.bench import run_bench
from grasp_deploy.cli.console import Commands, print_error, print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import Json, Models, RecordOutput, takes_settings
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.settings import (
    SEQUENCES,
    CardSettings,
    DriftSettings,
    PerplexitySettings,
    TaskSettings,
)

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

evaluate_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Measure the quality of a model."
)


@evaluate_app.command("perplexity")
@takes_settings(PerplexitySettings)
def perplexity_command(
    models: Models,
    *,
    settings: PerplexitySettings,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Perplexity on running text, sliding windows or single documents, models side by side."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # as in `evaluate tasks`
    from msgspec import convert

    from grasp_deploy.evaluate.losses.record import PerplexityRecord
    from grasp_deploy.evaluate.losses.run import measure_perplexity

    measure = partial(measure_perplexity, settings=settings)
    record = run_bench("perplexity", measure, models, output, as_json, dtype=settings.dtype)
    found, wanted = record["cells"][0]["data"].get("sequences"), settings.sequences or SEQUENCES
    if found is not None and found < wanted:
        length = record["settings"]["sequence_length"]
        print_error("warning", f"the text has only {found} sequences of {length} tokens: all taken")
    if flattered := convert(record, PerplexityRecord).flattered:
        print_error("warning", f"{flattered}; evaluate on other text")


@evaluate_app.command("tasks")
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
    # lm-eval's bars would interfere with ours; tqdm reads it when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from grasp_deploy.evaluate.tasks.accuracy import PRESETS
    from grasp_deploy.evaluate.tasks.harness import check_installed
    from grasp_deploy.evaluate.tasks.run import bench_tasks

    if preset is not None and preset not in PRESETS:
        raise InputError(f"--preset {preset} is unknown: use {' or '.join(PRESETS)}")
    names = [name.strip() for name in tasks.split(",")] if tasks is not None else []
    if "" in names:
        raise InputError(f"--tasks {tasks!r} has an empty name: write it like arc_easy,piqa")
    names += [name for name in PRESETS.get(preset or "", ()) if name not in names]
    check_installed()
    measure = partial(bench_tasks, settings=replace(settings, tasks=tuple(names)))
    run_bench("tasks", measure, models, output, as_json, dtype=settings.dtype)


@evaluate_app.command("drift")
@takes_settings(DriftSettings)
def drift_command(
    dense: Annotated[str, typer.Argument(help="Hub id or folder of the dense model.")],
    pruned: Annotated[str, typer.Argument(help="Folder or hub id of the pruned model.")],
    *,
    settings: DriftSettings,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """How far the pruned model has moved from its dense one, on texts of several kinds.

    For each text the KL divergence, the agreement on the most likely token and the loss in nats a
    token; over the texts the mean loss and the worst. On request the share of answers that flip
    (--task-file) and the length of greedy answers (--prompts).
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # as in `evaluate tasks`
    from grasp_deploy.evaluate.drift.run import measure_drift

    measure = partial(measure_drift, settings=settings)
    run_bench("drift", measure, (dense, pruned), output, as_json, dtype=settings.dtype)


@evaluate_app.command("card")
@takes_settings(CardSettings)
def card_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a checkpoint.")],
    *,
    settings: CardSettings,
    as_json: Json = False,
) -> None:
    """Measure dense beside pruned, and write the verdict into DIR: quality.json and README.md.

    An older card is replaced as a whole.
    """
    from grasp_deploy.evaluate.card import evaluate_card
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import card_tables

    with stage_bars(stderr) as on_progress:
        quality = evaluate_card(directory, settings, on_progress)
    if as_json:
        print_json(quality)
        return
    for table in card_tables(quality):
        stdout.print(table)
    print_line(quality["verdict"]["sentence"])
    if quality["warning"]:
        print_line(quality["warning"])
