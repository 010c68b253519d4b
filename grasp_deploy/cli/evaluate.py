"""`evaluate`: losses of models on the same texts, accuracy on tasks, and the quality card."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from grasp_deploy.cli.bench import run_bench
from grasp_deploy.cli.console import Commands, print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import Json, Models, RecordOutput, takes_settings
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.settings import CardSettings, CompareSettings, TaskSettings

evaluate_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Measure the quality of a model."
)


@evaluate_app.command("compare")
@takes_settings(CompareSettings)
def compare_command(
    models: Models,
    *,
    settings: CompareSettings,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Perplexity of models on the same texts, and what the others lost against the first one.

    For each text and model: nats a token above the first model, KL divergence from it, and the
    share of tokens where both find the same one most likely. The first model and one other are in
    memory at once. A model may stand alone.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # as in `evaluate tasks`
    from grasp_deploy.evaluate.compare import compare

    measure = partial(compare, settings=settings)
    run_bench("compare", measure, models, output, as_json)


@evaluate_app.command("tasks")
@takes_settings(TaskSettings)
def tasks_command(
    models: Models,
    *,
    tasks: Annotated[
        str | None, typer.Option(help="lm-eval's names, such as arc_easy,piqa.")
    ] = None,
    preset: Annotated[
        Literal["paper", "complex"] | None,
        typer.Option(
            help="paper: arc_challenge, arc_easy, hellaswag, piqa, winogrande; complex: gsm8k, "
            "mmlu, boolq, sciq."
        ),
    ] = None,
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

    names = [name.strip() for name in tasks.split(",")] if tasks is not None else []
    if "" in names:
        raise InputError(f"--tasks {tasks!r} has an empty name: write it like arc_easy,piqa")
    names += [name for name in PRESETS[preset] if name not in names] if preset else []
    check_installed()
    measure = partial(bench_tasks, settings=replace(settings, tasks=tuple(names)))
    run_bench("tasks", measure, models, output, as_json)


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
