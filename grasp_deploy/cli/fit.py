"""`fit`: the budget in the words of a deployment."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.cli.compress import compress_unless_done
from grasp_deploy.cli.compressed import print_compressed, serve_command
from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import CHECK_FAILED, print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import HiddenShardSize, Json, Overwrite
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError

OutputUnlessDry = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder to write, if the model is pruned.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Stop behind the prediction; needs no weights and no text."),
]


@takes_config
def fit_command(
    *,
    config: CompressConfig,
    output: OutputUnlessDry = None,
    dry_run: DryRun = False,
    shard_size: HiddenShardSize = "4GB",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Say what it takes to serve MODEL on a GPU, and prune it until it fits, or is fast enough.

    Give --gpu-memory, --sequences and --context; or a time such as --speedup 1.5, with --table,
    --batch and --context. A time is measured on the chosen shape, and corrected once. An unfinished
    run goes on.
    """
    if output is None and not dry_run:
        raise InputError("fit writes a checkpoint: give --output, or --dry-run for the sizes alone")
    if not config.in_time:
        document = fit_in_memory(
            config, None if dry_run else output, shard_size, overwrite, as_json
        )
    elif output is None or dry_run:
        raise InputError("--dry-run predicts memory, and fit measures a time: drop --dry-run")
    else:
        document = fit_in_time(config, output, shard_size, overwrite, as_json)
    if as_json:
        print_json(document)
    if not config.in_time and not any(offer["fits"] for offer in document["offers"]):
        raise typer.Exit(CHECK_FAILED)


def fit_in_memory(
    config: CompressConfig, output: Path | None, shard_size: str, overwrite: bool, as_json: bool
) -> dict[str, Any]:
    """Judge a deployment, and compress unless it fits; without `output` judge alone."""
    from grasp_deploy.checkpoint.footprint import inspect_model
    from grasp_deploy.fit.memory import predict_fit, serve_fit
    from grasp_deploy.fit.table import misses, offer_table, served_table

    fit = predict_fit(config)
    if fit.impossible and output is not None:
        raise InputError(fit.impossible)
    document = fit.as_dict()
    if not as_json:
        stdout.print(offer_table(fit))
        print_line(fit.verdict)
    if output is not None and not fit.fits:
        record = compress_unless_done(config, output, shard_size, overwrite)
        with stderr.status("asking vLLM what it holds"):
            served = serve_fit(output, fit)
        document |= {"result": inspect_model(str(output)), "served": served.as_dict()}
        if not as_json:
            if record:
                print_compressed(record, config)
            else:
                print_line(f"serve it: {serve_command(output, config)}")
            stdout.print(served_table(served))
            for line in misses(served):
                print_line(line)
    return document


def fit_in_time(
    config: CompressConfig, output: Path, shard_size: str, overwrite: bool, as_json: bool
) -> dict[str, Any]:
    """Compress to a time, or show that of what is already there; returns the record."""
    from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
    from grasp_deploy.fit.timing import fit_time
    from grasp_deploy.report.tables import time_table

    fit = partial(fit_time, command=["grasp-deploy", *sys.argv[1:]])
    record = compress_unless_done(config, output, shard_size, overwrite, fit)
    if record is None:
        record = {"output": str(output), "time": load_plan(output / PLAN_FILE).provenance["time"]}
        if not as_json:
            stdout.print(time_table(record["time"]))
    elif not as_json:
        print_compressed(record, config)
    return record
