"""`fit`: the budget in the words of a deployment."""

from __future__ import annotations

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
    """Say what it takes to serve MODEL on a GPU, and prune it until it fits.

    Give --gpu-memory, --sequences and --context. An unfinished run goes on.
    """
    if output is None and not dry_run:
        raise InputError("fit writes a checkpoint: give --output, or --dry-run for the sizes alone")
    document = fit_in_memory(config, None if dry_run else output, shard_size, overwrite, as_json)
    if as_json:
        print_json(document)
    if not any(offer["fits"] for offer in document["offers"]):
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
