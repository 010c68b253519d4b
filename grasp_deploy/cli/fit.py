"""`fit`: the budget in the words of a deployment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.compress import compress_unless_done, print_compressed
from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import print_json, print_line, stderr, stdout
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
    from grasp_deploy.checkpoint.footprint import inspect_model
    from grasp_deploy.fit.memory import predict_fit, serve_fit
    from grasp_deploy.fit.table import misses, offer_table, served_table

    fit = predict_fit(config)
    if fit.impossible and not dry_run:
        raise InputError(fit.impossible)
    document = fit.as_dict()
    if not as_json:
        stdout.print(offer_table(fit))
        print_line(fit.verdict)
    if not (dry_run or fit.fits):
        assert output is not None, "checked above"
        record = compress_unless_done(config, output, shard_size, overwrite)
        with stderr.status("asking vLLM what it holds"):
            served = serve_fit(output, fit)
        document |= {"result": inspect_model(str(output)), "served": served.as_dict()}
        if not as_json:
            if record:
                print_compressed(record)
            stdout.print(served_table(served))
            for line in misses(served):
                print_line(line)
            flags = shlex.join(served.flags)
            print_line(f"serve it so: grasp-deploy serve {shlex.quote(str(output))} -- {flags}")
    if as_json:
        print_json(document)
