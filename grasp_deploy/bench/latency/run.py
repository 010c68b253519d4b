"""Times of whole models whose layers are all alike, beside the dense one: a table of prices.

A few shapes at a time stand beside the dense model, with random weights, and every point is
measured in rounds. So the difference of two whole models, over the number of layers, is the price
of a width in one layer, whatever the machine does meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grasp_deploy.bench.latency.record import LatencyRecord
from grasp_deploy.bench.limits import check_positions
from grasp_deploy.bench.throughput.engines import checked
from grasp_deploy.bench.throughput.record import Cell, ThroughputSettings
from grasp_deploy.bench.throughput.run import bench_throughput
from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, read_config
from grasp_deploy.compression.latency_table import KIND, Point, TableModel, Times
from grasp_deploy.compression.synthesize import write_shape
from grasp_deploy.compression.table_shapes import Sizes, sizes_to_measure, uniform
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.config.option import assigned, flag
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import machine, new_record, read_record, write_record

STAGE = "timing shapes"


def bench_latency(
    dense: BenchModel,
    settings: LatencySettings,
    command: Sequence[str],
    unfinished: Path,
    on_progress: OnProgress = ignore_progress,
) -> LatencyRecord:
    """Measure all shapes at all batches and contexts.

    What is measured is kept in the file `unfinished`, where the next call goes on. Raises
    InputError for what cannot be measured, or if other options or models began that file.
    """
    sizes = sizes_to_measure(dense.shape, settings)
    for context in settings.contexts:
        check_positions([dense], context, flag(settings, "contexts"))
        device = checked([dense], throughput_settings(settings, context)).device
    settings = replace(settings, device=device)
    models = [TableModel(dense.name, footprint(dense.shape))]
    header = new_record(KIND, command, settings, models=models)
    kept = _kept(unfinished, header) if unfinished.exists() else []
    cells = _of_whole_groups(kept, sizes, settings)
    missing = list(_groups(sizes, settings, cells))
    runs = len(settings.batches) * (1 + settings.repetitions)  # of each model, with its warm-up
    steps = [runs * (1 + len(group)) for _, group in missing]
    for number, (context, group) in enumerate(missing):

        def advance(row: dict[str, Any], before: int = sum(steps[:number])) -> None:
            if row["stage"] == "measuring":
                on_progress({"stage": STAGE, "step": before + row["step"], "steps": sum(steps)})

        cells += measured_points(dense, group, settings, context, command, advance)
        write_record(unfinished, {**header, "cells": cells})
    # Whatever stood side by side.
    cells.sort(key=lambda cell: (cell.context, cell.batch, sizes.index(cell.place[0])))
    record = LatencyRecord(**header, cells=cells)
    assert record.is_whole(dense.shape), "every point is measured once"
    return record


def throughput_settings(
    settings: LatencySettings, context: int, batches: tuple[int, ...] | None = None
) -> ThroughputSettings:
    """The settings of the bench that times models at one context."""
    if context <= settings.new_tokens:
        raise InputError(
            f"--context {context} leaves no prompt before {settings.new_tokens} new tokens: give "
            "a longer context, or fewer --new-tokens"
        )
    return ThroughputSettings(
        engine=settings.engine,
        batches=batches or settings.batches,
        prompt_tokens=context - settings.new_tokens,
        new_tokens=settings.new_tokens,
        repetitions=settings.repetitions,
        enforce_eager=settings.enforce_eager,
        device=settings.device,
        dtype=settings.dtype,
        seed=settings.seed,
    )


def measured_points(
    dense: BenchModel,
    sizes: Sequence[Sizes],
    settings: LatencySettings,
    context: int,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> list[Point]:
    """Points of a few sizes at one context and every batch."""
    shapes = [uniform(dense.shape, one) for one in sizes]
    asked = throughput_settings(settings, context)
    with beside_dense(dense, shapes) as models:
        record = bench_throughput(models, asked, command, on_progress)
    by_point = {(cell.model, cell.batch): samples_of(cell) for cell in record.cells}
    return [
        Point(
            ffn_channels=one.ffn_channels,
            kv_groups=one.kv_groups,
            batch=batch,
            context=context,
            samples=by_point[model.name, batch],
            dense_samples=by_point[models[0].name, batch],
        )
        for batch in settings.batches
        for one, model in zip(sizes, models[1:], strict=True)
    ]


@contextmanager
def beside_dense(dense: BenchModel, shapes: Sequence[ModelShape]) -> Iterator[list[BenchModel]]:
    """The dense model and others of these shapes, all with random weights."""
    stated = read_config(dense.path)
    with TemporaryDirectory() as folder:
        models = [dense]
        for number, shape in enumerate(shapes, start=1):
            path = Path(folder) / f"shape-{number}"
            write_shape(stated, shape, path)
            models.append(BenchModel(path.name, path, shape, random_weights=True))
        yield models


def samples_of(cell: Cell) -> list[Times]:
    """The times of a cell; InputError if its batch did not fit."""
    if cell.refused:
        raise InputError(
            f"{cell.refused}; a table needs every point: --side-by-side 2 leaves the most memory"
        )
    decoding = [sample.tpot_seconds for sample in cell.samples]
    assert all(decoding), "a table has two new tokens or more"
    return [Times(s.ttft_seconds, s.tpot_seconds or 0) for s in cell.samples]


def _of_whole_groups(
    kept: Sequence[Point], sizes: Sequence[Sizes], settings: LatencySettings
) -> list[Point]:
    """The kept points of sizes that have one for every batch: they are measured together."""
    known = {cell.place: cell for cell in kept if len(cell.samples) == settings.repetitions}
    cells = []
    for context, one in product(settings.contexts, sizes):
        points = [known.get((one, batch, context)) for batch in settings.batches]
        cells += [point for point in points if point is not None and None not in points]
    return cells


def _groups(
    sizes: Sequence[Sizes], settings: LatencySettings, cells: Sequence[Point]
) -> Iterator[tuple[int, list[Sizes]]]:
    """Context and shapes of each measurement to come; all batches are measured together."""
    known = {(cell.place[0], cell.context) for cell in cells}
    others = settings.side_by_side - 1
    for context in settings.contexts:
        missing = [one for one in sizes if (one, context) not in known]
        for start in range(0, len(missing), others):
            yield context, missing[start : start + others]


def _kept(unfinished: Path, header: dict[str, Any]) -> list[Point]:
    """The points of an unfinished table; InputError if it began otherwise."""
    start_over = f"delete {unfinished} to start over, or name another --output"
    record = typed(read_record(unfinished, start_over), LatencyRecord, unfinished, start_over)
    settings: LatencySettings = header["settings"]
    before = replace(record.settings, side_by_side=settings.side_by_side)  # of no effect on times
    changed = [
        assigned(before, name)
        for name, value in asdict(settings).items()
        if getattr(before, name) != value
    ]
    changed += ["another model"] * (record.models != header["models"])
    changed += ["another machine"] * (record.machine != machine())
    if changed:
        raise InputError(
            f"an unfinished table, begun with {', '.join(changed)}, lies in {unfinished}: give "
            f"the same options, {start_over}"
        )
    return record.cells
