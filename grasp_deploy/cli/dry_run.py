"""`compress --dry-run`: its options, and what it prints."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from grasp_deploy.cli.console import CHECK_FAILED, is_under_torchrun, print_json, print_line, stdout
from grasp_deploy.cli.options import running_option
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import BINARY_UNITS
from grasp_deploy.report.progress import STAGES

if TYPE_CHECKING:
    from grasp_deploy.compression.dry_run import DryRun as Predicted

DryRun = Annotated[
    bool,
    running_option(
        "--dry-run",
        help="Predict memory and time of compressing before a weight is loaded; with "
        "--device-memory 80GiB memory of GPUs of that size.",
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
    """Print memory and time that a compression would take."""
    if is_under_torchrun():
        raise InputError("--dry-run predicts any number of processes: start it without torchrun")
    from grasp_deploy.compression.dry_run import dry_run

    found = dry_run(config, device_memory)
    if as_json:
        print_json({"model": config.model, **found.as_dict()})
    else:
        stdout.print(_memory_table(found))
        print_line(found.verdict)
        if found.seconds is not None:
            print_line(
                f"About {timedelta(seconds=round(found.seconds))} (hours, minutes, seconds) on one "
                "process, by a pass measured here; solving least squares in float64 comes on top."
            )
    if not any(map(found.fits, found.ways)):
        raise typer.Exit(CHECK_FAILED)


def _memory_table(found: Predicted) -> Table:
    """The peak of each stage, for each number of processes; dim where it does not fit."""
    unit = "GiB" if found.ways[0].machine_bytes >= BINARY_UNITS["GiB"] else "MiB"
    device = "each GPU" if found.ways[0].on_gpu else "the CPU, each process"
    table = Table("processes", title=f"Peak memory of {device}, {unit}", title_justify="left")
    columns = []
    for way in found.ways:
        head = f"{way.processes}" + ", weights\non the CPU" * way.offload
        style = None if found.fits(way) else "dim"
        table.add_column(head, justify="right", no_wrap=True, style=style)
        columns.append([*(sum(terms.values()) for terms in way.stages.values()), way.machine_bytes])
    labels = [*(STAGES[stage] for stage in found.ways[0].stages), "CPU memory of all"]
    for label, *row in zip(labels, *columns, strict=True):
        table.add_row(label, *(f"{size / BINARY_UNITS[unit]:,.1f}" for size in row))
    return table
