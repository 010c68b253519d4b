"""Compress to a budget in time, with the mask's shape timed as the table was.

The shape stands beside the dense model, both with random weights: speed depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from grasp_deploy.bench.latency.run import beside_dense, samples_of, throughput_settings
from grasp_deploy.bench.throughput.run import bench_throughput
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.latency_table import Point
from grasp_deploy.compression.result import Compressed
from grasp_deploy.compression.time_budget import phase_of, time_budget
from grasp_deploy.compression.timing import Measure
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.progress import OnProgress, ignore_progress

STAGE = "timing the mask"


def fit_time(
    config: CompressConfig,
    output: str | Path,
    *,
    on_progress: OnProgress = ignore_progress,
    command: Sequence[str] = (),
    **options: Any,
) -> Compressed:
    """Compress as `compress` does, with one correction by a measurement before the last refit.

    `options` are those of `compress`.
    """
    measure = shape_timer(config, command, on_progress)
    return compress(config, output, on_progress=on_progress, measure=measure, **options)


def shape_timer(
    config: CompressConfig, command: Sequence[str], on_progress: OnProgress = ignore_progress
) -> Measure:
    """A function from a pruned shape to the seconds of its phase, measured as the table was.

    Each repetition gives the table's time of the dense model, times the ratio of both side by side.
    A shape is measured once.
    """
    stated = resolve_config(config.model, config.revision)
    time = time_budget(config, config_and_shape(stated)[1])
    assert time is not None and config.in_time, "the budget is a time"
    assert config.context and config.batch, "checked with the config"
    batch, context, table = config.batch, config.context, time.table
    settings = throughput_settings(table.settings, context, (batch,))
    (dense,) = bench_models([str(stated)], random_weights=True, dtype=table.settings.dtype)

    def advance(row: dict[str, Any]) -> None:
        if row["stage"] == "measuring":
            on_progress({**row, "stage": STAGE})

    @cache
    def seconds(shape: ModelShape) -> list[float]:
        with beside_dense(dense, [shape]) as models:
            record = bench_throughput(models, settings, command, advance)
        before, after = (samples_of(cell) for cell in record.cells)
        pair = Point(1, 1, batch, context, samples=after, dense_samples=before)
        return [time.price.dense_seconds * s for s in pair.shares_of_dense(phase_of(config))]

    return seconds
