"""`evaluate`: perplexity, accuracy on tasks, drift from the dense model, and the quality card."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.cli.bench import run_bench
from grasp_deploy.cli.console import Commands, print_error, print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import (
    MODEL_HELP,
    Json,
    Models,
    RecordOutput,
    Revision,
    takes_settings,
)
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
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    settings: PerplexitySettings,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Perplexity on running text, sliding windows or single documents."""
    from grasp_deploy.checkpoint.read.source import resolve_model

    record = _measured_perplexity(resolve_model(model, revision).directory, settings)
    if as_json:
        print_json({"model": model, **record})
        return
    interval = record["perplexity_interval"]
    within = f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    text = f"on {record['tokens']:,} tokens of {settings.data}"
    print_line(f"perplexity {record['perplexity']:.3f}{within} {text}")
    if record["bits_per_byte"] is not None:
        print_line(f"bits per byte {record['bits_per_byte']:.4f} on {record['bytes']:,} bytes")
    if "mean_over_documents" in record:
        mean = record["mean_over_documents"]["perplexity"]
        print_line(f"each document counted once, however long: {mean:.3f}")
    print_line(f"counted: {record['tokens_counted']}")


def _measured_perplexity(directory: Path, settings: PerplexitySettings) -> dict[str, Any]:
    """Load a model and measure it with progress bars; returns the record that `--json` prints."""
    from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
    from grasp_deploy.checkpoint.read.source import positions_at
    from grasp_deploy.data import (
        Blocks,
        Documents,
        evaluation_source,
        read_blocks,
        read_token_documents,
    )
    from grasp_deploy.evaluate.perplexity import perplexity
    from grasp_deploy.report.progress import stage_bars

    tokenizer, length, stride = load_tokenizer(directory), settings.sequence_length, settings.stride
    if length is None:
        length = min(2048, positions_at(directory) or 2048)
    if stride is not None and stride > length:
        raise InputError(
            f"--stride {stride} would leave out tokens between windows of {length}: use {length} "
            "or less"
        )
    source = evaluation_source(settings.data, settings.split, settings.column)
    wanted = settings.sequences or SEQUENCES
    text: Blocks | Documents
    if settings.per_document:
        text = read_token_documents(tokenizer, source, length, wanted)
    else:
        text = read_blocks(tokenizer, source, length, wanted, or_fewer=settings.sequences is None)
        if (found := len(text.token_ids)) < wanted:
            print_error(
                "warning", f"the text has only {found} sequences of {length} tokens: all are taken"
            )
    calibrated_on_share = _calibrated_share(directory, text.running_texts)
    loaded = load(directory, device=settings.device, dtype=settings.dtype)
    with stage_bars(stderr) as on_progress:
        result = perplexity(
            loaded, text, settings.batch_size, on_progress, stride=stride, tokenizer=tokenizer
        )
    return {**result.as_dict(), "calibrated_on_share": calibrated_on_share}


def _calibrated_share(directory: Path, texts: Any) -> float | None:
    """The share of `(T,)` texts in the calibration set; None if unknown. Warns if it is large."""
    from grasp_deploy.checkpoint.plan import calibrated_beside
    from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, calibrated_share

    calibrated = calibrated_beside(directory)
    if calibrated is None:
        return None
    share = calibrated_share(texts, calibrated)
    if share >= NOTEWORTHY_SHARE:
        part = "all" if share == 1 else f"at least {int(share * 100)} %"
        print_error(
            "warning",
            f"{part} of this text was calibrated on: the perplexity flatters the pruned model; "
            "evaluate on other text",
        )
    return share


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
