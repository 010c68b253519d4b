"""`compress --dry-run`: its options, and what it prints."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy.cli.console import CHECK_FAILED, is_under_torchrun, print_json, print_line, stdout
from grasp_deploy.cli.options import running_option
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError

DryRun = Annotated[
    bool,
    running_option(
        "--dry-run",
        help="Predict memory, disk and time before a weight is loaded; with --device-memory 80GiB "
        "memory and disk for GPUs of that size.",
    ),
]
DeviceMemory = Annotated[
    str | None,
    running_option(
        "--device-memory",
        metavar="SIZE",
        hidden=True,  # `--help-all` shows it
        help="Memory of each GPU that --dry-run judges by, such as 80GiB: of GPUs not here, too.",
    ),
]


def show_dry_run(config: CompressConfig, device_memory: str | None, as_json: bool) -> None:
    """Print memory, disk and time that a compression would take."""
    if is_under_torchrun():
        raise InputError("--dry-run predicts any number of processes: start it without torchrun")
    from grasp_deploy.compression.needs.dry_run import dry_run
    from grasp_deploy.compression.needs.table import stages_table, ways_table

    found = dry_run(config, device_memory)
    if as_json:
        print_json(found.as_dict())
    else:
        stdout.print(ways_table(found), stages_table(found, found.shown))
        print_line(found.verdict)
    if found.smallest is None:
        raise typer.Exit(CHECK_FAILED)
