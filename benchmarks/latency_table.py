"""A budget in time: what the table promises, and what a model under it takes.

A table of the shapes is measured, or read from --table. Then, for each speedup, a random mask under
its prices is timed beside the dense model, and once more after the correction that `fit` makes. All
weights are random, so a config.json is enough.

    python -m benchmarks.latency_table --config ../shared/models/ref-llama-7m --batch 1,16 \
        --speedup 1.2,1.5,2.0 --steps 4
    python -m benchmarks.latency_table --config benchmarks/configs/llama-2-7b.json \
        --engine transformers --steps 4 --side-by-side 4 --table llama-2-7b-times.json
    python -m benchmarks.latency_table --config benchmarks/configs/qwen3-8b.json \
        --engine transformers --steps 4 --side-by-side 4 --table qwen3-8b-times.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta
from rich.console import Console
from rich.table import Table

from benchmarks.common.models import MODEL
from benchmarks.common.output import (
    add_output_options,
    check_place,
    check_positive,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from grasp_deploy.bench.latency.record import LatencyRecord
from grasp_deploy.bench.latency.run import bench_latency
from grasp_deploy.bench.latency.table import price_table, shape_table
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.plan import pruned_layers
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.latency_table import KIND
from grasp_deploy.compression.time_budget import time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.config.option import check_fields, number_list
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import check_place as check_table_place
from grasp_deploy.files.record import new_record, write_record
from grasp_deploy.fit.timing import shape_timer
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project

Speedup = Annotated[float, Meta(gt=1, le=1000)]


def measured_table(
    settings: LatencySettings, config: Path, path: Path, command: list[str], show: OnProgress
) -> None:
    """Measure a table into the file `path`, unless it is there."""
    if path.exists():
        return
    (dense,) = bench_models([str(config)], random_weights=True, dtype=settings.dtype)
    unfinished = path.with_name(f"{path.name}.partial")
    record: LatencyRecord = bench_latency(dense, settings, command, unfinished, show)
    for phase in ("decode", "prefill"):
        Console().print(shape_table(record, phase))
    Console().print(price_table(record))
    write_record(path, record)
    unfinished.unlink()


def row_of(config: CompressConfig, command: list[str], show: OnProgress) -> dict[str, Any]:
    """One speedup: a random mask's predicted and measured seconds, before and after correction."""
    dense = model_shape(read_config(resolve_config(config.model)))
    point = {"speedup": config.speedup, "batch": config.batch, "context": config.context}
    try:
        budget = budget_for(config, dense, torch.device("cpu"))
    except InputError as error:
        return {**point, "refused": str(error)}
    time, measure = time_budget(config, dense), shape_timer(config, command, show)
    assert time is not None, "the budget is a time"
    timed: list[dict[str, Any]] = []
    under: Budget | None = budget
    while under is not None and len(timed) < 2:
        shape, cost = random_shape(under, dense, config.seed)
        predicted, measured = time.seconds(cost, under.total_cost), measure(shape)
        seconds = {"predicted_seconds": predicted, "measured_seconds": statistics.median(measured)}
        timed.append({**seconds, "repetition_seconds": measured})
        under = time.correction(under, predicted, measured).budget
    fixed_share = time.price.fixed_seconds / time.price.dense_seconds
    dense_seconds = time.price.dense_seconds
    return {**point, "dense_seconds": dense_seconds, "fixed_share": fixed_share, "timed": timed}


def random_shape(budget: Budget, dense: ModelShape, seed: int) -> tuple[ModelShape, float]:
    """The shape that random scores keep under a budget, and its cost."""
    scores = torch.rand(budget.units.size, generator=torch.Generator().manual_seed(seed))
    mask = project(scores, budget)
    layers = pruned_layers(dense, budget.units.kept_per_layer(mask))
    return replace(dense, layers=layers, pruned=True), budget.cost_of(mask)


def speedup_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Asked, predicted and measured, and again after the correction."""
    table = Table("batch, context", title="Times as fast as dense", title_justify="left")
    for head in ("fixed", "asked", "predicted", "measured", "predicted again", "measured again"):
        table.add_column(head, justify="right")
    for row in rows:
        point = f"{row['batch']}, {row['context']:,}"
        if "refused" in row:
            label = "beyond reach" if "beyond reach" in row["refused"] else "no price"
            table.add_row(point, "", f"{row['speedup']:g}", label)
            continue
        names = ("predicted_seconds", "measured_seconds")
        times = [timed[name] for timed in row["timed"] for name in names]
        gains = [f"{row['dense_seconds'] / seconds:.2f}" for seconds in times]
        table.add_row(point, f"{row['fixed_share']:.0%}", f"{row['speedup']:g}", *gains)
    return table


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--config", type=Path, default=MODEL, help="a dense config.json")
    parser.add_argument("--table", type=Path, help="where the table is, or is to be written")
    parser.add_argument("--engine", default="vllm", choices=("vllm", "transformers"))
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--context", default="512")
    parser.add_argument("--speedup", default="1.3")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side-by-side", type=int, default=3)
    add_output_options(parser, "the embedded model, in a minute")
    options = parser.parse_args(arguments)
    check_place(options.output, "latency_table")
    check_table_place(options.table, KIND)
    check_positive(options, "steps", "new_tokens", "repetitions", "side_by_side")
    if options.smoke:
        options.engine, options.batch, options.context, options.steps = "transformers", "4", "64", 2
        options.new_tokens, options.repetitions = 8, 3
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    command = command_of("latency_table", arguments)
    settings = LatencySettings(
        engine=options.engine,
        batches=number_list(options.batch, "--batch"),
        contexts=number_list(options.context, "--context"),
        new_tokens=options.new_tokens,
        steps=options.steps,
        repetitions=options.repetitions,
        side_by_side=options.side_by_side,
    )
    check_fields(settings)
    speedups = number_list(options.speedup, "--speedup", Speedup)
    points = product(settings.batches, settings.contexts, speedups)
    with working_folder("latency-table") as (folder, show):
        table = options.table or folder / "table.json"
        measured_table(settings, options.config, table, command, show)
        asked = CompressConfig(
            model=str(options.config), speedup=2.0, table=str(table), batch=1, context=1
        )
        rows = [
            row_of(replace(asked, batch=batch, context=context, speedup=speedup), command, show)
            for batch, context, speedup in points
        ]
    Console().print(speedup_table(rows))
    write(options.output, new_record("latency_table", command, settings, rows=rows))


if __name__ == "__main__":
    run_command(main)
