"""`table`: times by FFN width and KV groups, the prices of a budget in time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr
from grasp_deploy.cli.options import Json, takes_settings
from grasp_deploy.cli.report import print_report
from grasp_deploy.config.latency_options import LatencySettings

Model = Annotated[str, typer.Argument(help="Folder, hub id or config.json of a dense model.")]
TableOutput = Annotated[Path, typer.Option("--output", "-o", help="JSON file to write.")]


@takes_settings(LatencySettings)
def table_command(
    model: Model, *, settings: LatencySettings, output: TableOutput, as_json: Json = False
) -> None:
    """Measure decode and prefill by FFN width and KV groups, with random weights.

    `compress --speedup` prices units by such a table. A stopped run goes on with the same command.
    """
    from msgspec import to_builtins

    from grasp_deploy.bench.kinds import section_of
    from grasp_deploy.bench.latency.run import bench_latency
    from grasp_deploy.compression.latency_table import KIND
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.files.record import check_place, write_record
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.section import NamedRecord

    check_place(output, KIND)
    (dense,) = bench_models([model], random_weights=True, dtype=settings.dtype)
    unfinished = output.with_name(f"{output.name}.partial")
    command = ["grasp-deploy", *sys.argv[1:]]
    with stage_bars(stderr) as on_progress:
        record = bench_latency(dense, settings, command, unfinished, on_progress)
    write_record(output, record)
    unfinished.unlink()
    document = to_builtins(record)
    if as_json:
        print_json(document)
    else:
        print_report([section_of(NamedRecord(output.stem, document, output))], [])
        print_line(f"wrote {output}")
