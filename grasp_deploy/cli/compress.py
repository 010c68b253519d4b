"""Commands that make a smaller model of a dense one: `compress`, `synthesize` and `demo`."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_deploy.cli.compressed import print_compressed, print_family
from grasp_deploy.cli.console import (
    CHECK_FAILED,
    is_under_torchrun,
    print_json,
    print_line,
    stderr,
    stdout,
)
from grasp_deploy.cli.options import (
    Json,
    Output,
    OutputUnlessDry,
    Overwrite,
    config_of,
    running_option,
    takes_config,
    takes_fields,
)
from grasp_deploy.cli.ranks import joined_ranks
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import BINARY_UNITS

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_deploy.checkpoint.plan import Plan
    from grasp_deploy.compression.dry_run import DryRun as Predicted
    from grasp_deploy.compression.run_options import Start

DryRun = Annotated[
    bool,
    running_option(
        "--dry-run",
        help="Predict memory and time of compressing, before a weight is loaded; with --gpu-memory "
        "80GiB, and without --concurrency, on GPUs of that size.",
    ),
]
Resume = Annotated[
    bool,
    running_option(
        "--resume", help="Continue an unfinished run. With --overwrite: one that replaces OUTPUT."
    ),
]
DenseConfig = Annotated[str, typer.Argument(help="config.json, folder or hub id of a dense model.")]
KvKeep = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Share of all KV groups to keep; FFN channels take the rest."),
]
BUDGET_FIELDS = (
    *("keep", "cost", "cached_tokens", "targets"),
    *("ffn_multiple", "kv_multiple"),
    *("tensor_parallel", "seed", "revision"),
)


@takes_config
def compress_command(
    *,
    given: dict[str, Any],
    output: OutputUnlessDry = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compress MODEL under one global budget into a smaller dense checkpoint.

    Several shares, as in --keep 0.8,0.6,0.4, make a family: OUTPUT then holds a checkpoint of each.
    """
    if dry_run:  # without a load --gpu-memory is no budget
        has_load = "concurrency" in given or ("context" in given and "batch" not in given)
        gpu_memory = None if has_load else given.pop("gpu_memory", None)
        show_dry_run(measured(config_of(given)), gpu_memory, as_json)
        return
    config = config_of(given)
    if output is None:
        raise InputError(
            "compress writes a checkpoint: give --output, or --dry-run for what it would need"
        )
    config = measured(config, output if resume else None)
    with joined_ranks(config, output=output, resume=resume, overwrite=overwrite):
        record = run_compress(config, output, resume, overwrite)
    if as_json:
        print_json(record)
    elif config.family:
        print_family(record["members"], config, output)
    else:
        print_compressed(record, config)


def show_dry_run(
    config: CompressConfig,
    gpu_memory: str | None,
    as_json: bool,
    plan: Plan | None = None,
) -> None:
    """Print memory and time of a compression, or of the recovery of a plan's checkpoint."""
    if is_under_torchrun():
        raise InputError("--dry-run predicts any number of processes: start it without torchrun")
    from grasp_deploy.compression.dry_run import dry_run
    from grasp_deploy.compression.stages import OWN_METHOD

    found = dry_run(config, gpu_memory, plan)
    if as_json:
        print_json({"model": config.model, **found.as_dict()})
    else:
        stdout.print(_memory_table(found))
        print_line(found.verdict)
        if found.seconds is not None:  # memory was shown before, since measuring takes a while
            more = "." if plan else "; least squares come on top."
            print_line(
                f"About {timedelta(seconds=round(found.seconds))} (hours, minutes, seconds) on one "
                f"process, by a pass measured here{more}"
            )
        if OWN_METHOD in found.passes:
            print_line("What your own method takes is unknown: its memory and time come on top.")
    if not any(map(found.fits, found.ways)):
        raise typer.Exit(CHECK_FAILED)


def _memory_table(found: Predicted) -> Table:
    """The peak of each stage, for each number of processes; dim where it does not fit."""
    from grasp_deploy.report.progress import STAGES
    from grasp_deploy.report.tables import figure_table

    first = found.ways[0]
    unit = "GiB" if first.device_bytes >= BINARY_UNITS["GiB"] else "MiB"
    device = "each GPU" if first.on_gpu else "the CPU, each process"
    heads = [f"{way.processes}" + ", weights\non the CPU" * way.offload for way in found.ways]
    title = f"Peak memory of {device}, {unit}"
    table = figure_table(title, ["processes", *heads])
    for column, way in zip(table.columns[1:], found.ways, strict=True):
        column.style = "none" if found.fits(way) else "dim"
    for stage in first.stages:
        sizes = (sum(way.stages[stage].values()) for way in found.ways)
        table.add_row(STAGES[stage], *(f"{size / BINARY_UNITS[unit]:,.1f}" for size in sizes))
    totals = (f"{way.machine_bytes / BINARY_UNITS[unit]:,.1f}" for way in found.ways)
    table.add_row("CPU memory of all,\nlibraries included", *totals)
    return table


@takes_fields(
    "budget",
    BUDGET_FIELDS,
    keep="Share of the prunable cost to keep, such as 0.6; required.",
    cost="Cost model: parameters, kv-bytes, memory, or your own package.module:function.",
)
def synthesize_command(
    config: DenseConfig,
    *,
    budget: dict[str, Any],
    output: Output,
    kv_keep: KvKeep = None,
    as_json: Json = False,
) -> None:
    """Prune a config.json by a random mask under a budget, for benches with --random-weights."""
    if "keep" not in budget:
        raise InputError("synthesize prunes to a share of the cost: give --keep, such as 0.6")
    if budget.get("cost") == "latency":
        raise InputError("synthesize measures no times: give --cost parameters, kv-bytes or memory")
    try:
        checked = CompressConfig(model=config, **budget)
    except InputError as error:  # this command has --targets instead of --set targets
        raise InputError(str(error).replace("--set targets=", "--targets ")) from None
    from grasp_deploy.checkpoint.footprint import inspect_model
    from grasp_deploy.compression.synthesize import synthesize
    from grasp_deploy.report.tables import footprint_table

    synthesize(checked, output, kv_keep=kv_keep)
    record = inspect_model(str(output))
    if as_json:
        print_json(record)
        return
    stdout.print(footprint_table({"dense": record["dense"], "pruned": record}))
    print_line(f"wrote {output}")


def demo_command(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New folder that keeps texts and pruned checkpoint."),
    ] = None,
) -> None:
    """Compress, verify and serve the small model inside this package; print dense and pruned."""
    from grasp_deploy.demo.run import PROMPT, run_demo
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import footprint_table

    with stage_bars(stderr) as on_progress:
        dense, pruned, completion = run_demo(on_progress, stderr.print, output)
    stdout.print(footprint_table({"dense": dense, "pruned": pruned}, "What was won and lost"))
    print_line(f"prompt:     {PROMPT}\ncompletion: {completion}")
    if output is not None:
        print_line(f"kept {output / 'pruned'} and the texts beside it")


def measured(config: CompressConfig, begun: Path | None = None) -> CompressConfig:
    """The config, with times if its budget is in time: of the run `begun`, or measured now."""
    if config.cost_model != "latency":
        return config
    from grasp_deploy.bench.times import with_times
    from grasp_deploy.report.progress import stage_bars

    alone = not is_under_torchrun()
    with stage_bars(stderr) as on_progress:
        config, told = with_times(config, begun, on_progress, measures=alone)
    if alone:
        stderr.print(f"times: {told}", soft_wrap=True, highlight=False)
    return config


def run_compress(
    config: CompressConfig,
    output: Path,
    resume: bool,
    overwrite: bool,
    start: Start | None = None,
) -> dict[str, Any]:
    """Compress, or recover, with progress bars; return the record that `--json` prints."""
    from grasp_deploy.compression.compress import compress
    from grasp_deploy.compression.ranks import is_lead
    from grasp_deploy.compression.result import compression_record, finished_record
    from grasp_deploy.compression.resume import Workspace
    from grasp_deploy.compression.run_options import RunOptions
    from grasp_deploy.compression.stages import of_recovery, passes_of
    from grasp_deploy.compression.walks import compress_family, compress_within
    from grasp_deploy.files.progress import ignore_progress
    from grasp_deploy.report.progress import stage_bars

    if resume and overwrite and is_lead() and Workspace.begun_with(output, config):
        stderr.print("going on with the unfinished run; --overwrite alone would start it over")
    try:
        expected = {} if config.walks else passes_of(config)
        if start is not None:
            expected = of_recovery(expected)
        with stage_bars(stderr, expected) if is_lead() else nullcontext(ignore_progress) as show:
            options = RunOptions(output, resume, overwrite, show)
            if config.family:
                return {"members": [*map(compression_record, compress_family(config, options))]}
            if start is not None:
                return finished_record(compress(config, options, start))
            make = compress_within if config.walks else compress
            return compression_record(make(config, options))
    except (KeyboardInterrupt, SystemExit):  # raised by a signal
        if is_lead() and (config.family or Workspace.begun_with(output, config)):
            go_on = "give the same command again (compress and heal: with --resume)"
            stderr.print(f"what was saved is kept; to go on, {go_on}", soft_wrap=True)
        raise
