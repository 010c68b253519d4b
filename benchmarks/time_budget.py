"""A budget in time: what is predicted of a mask, and what a model of its shape takes.

For each batch and speedup a random mask under the measured prices, timed beside the dense model.
All weights are random, so a config.json is enough.

    python -m benchmarks.time_budget --config ../shared/models/ref-llama-7m --batch 1,16 \
        --speedup 1.2,1.5,2.0
    python -m benchmarks.time_budget --config benchmarks/configs/llama-2-7b.json --batch 1,16
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from rich.table import Table

from benchmarks.common import output
from benchmarks.common.models import MODEL
from grasp_deploy.bench.times import (
    engine_for,
    paired_medians,
    throughput_settings,
    timed,
    with_times,
)
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.synthesize import synthesize
from grasp_deploy.compression.time_budget import TimeBudget, time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import number_list
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, bench_models
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.report.tables import figure_table

Speedup = Annotated[float, Meta(gt=1, le=1000)]


def rows_of(
    dense: BenchModel,
    config: CompressConfig,
    speedups: Sequence[float],
    folder: Path,
    show: OnProgress,
) -> list[dict[str, Any]]:
    """A row for each speedup at one batch: asked, predicted and measured."""
    config, _ = with_times(config, on_progress=show)
    time, rows, shapes = time_budget(config), [], []
    assert time is not None, "the cost is a time"
    for speedup in speedups:
        row: dict[str, Any] = {"batch": config.batch, "speedup": speedup}
        try:
            shape = synthesize(
                replace(config, speedup=speedup), folder / f"{config.batch}-{speedup}"
            )
        except InputError as error:
            row["refused"] = str(error)
        else:
            shapes.append(shape)
            row["predicted"] = time.dense_seconds / predicted_seconds(time, dense.shape, shape)
        rows.append(row)
    cells = timed(dense, shapes, throughput_settings(dense, engine_for(dense.shape), config), show)
    dense_seconds, *measured = paired_medians(cells)
    for row in (row for row in rows if "refused" not in row):
        row["measured"] = dense_seconds / measured.pop(0)
    return rows


def predicted_seconds(time: TimeBudget, dense: ModelShape, pruned: ModelShape) -> float:
    """The time of a shape on the line through the measured times."""
    channels, groups = (
        sum(getattr(layer, name) for layer in pruned.layers)
        / sum(getattr(layer, name) for layer in dense.layers)
        for name in ("intermediate_size", "num_key_value_heads")
    )
    saved = time.ffn_seconds * (1 - channels) + time.kv_seconds * (1 - groups)
    return time.dense_seconds - saved


def speedup_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = figure_table("Times as fast as dense", ("batch", "asked", "predicted", "measured"))
    for row in rows:
        gains = ["beyond reach"]
        if "refused" not in row:
            gains = [f"{row[name]:.2f}" for name in ("predicted", "measured")]
        table.add_row(str(row["batch"]), f"{row['speedup']:g}", *gains)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("--config", type=Path, default=MODEL, help="a dense config.json")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--speedup", default="1.2,1.5,2.0")
    options = output.parsed(parser, arguments, "time_budget", "the embedded model, in a minute")
    if options.smoke:
        options.batch, options.context = "4", 64
    rows = list[dict[str, Any]]()
    speedups = number_list(options.speedup, "--speedup", Speedup)
    (dense,) = bench_models([str(options.config)], random_weights=True)
    with output.working_folder("time-budget") as (folder, show):
        for batch in number_list(options.batch, "--batch"):
            point = {"batch": batch, "context": options.context}
            config = CompressConfig(model=str(options.config), speedup=2.0, **point)
            rows += rows_of(dense, config, speedups, folder, show)
    stdout.print(speedup_table(rows))
    settings = {"engine": engine_for(dense.shape), "context": options.context}
    output.write(options.output, output.new_record("time_budget", arguments, settings, rows=rows))


if __name__ == "__main__":
    output.run_command(main)
