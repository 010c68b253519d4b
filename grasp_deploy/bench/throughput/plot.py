"""Throughput by batch size, and its ratio to the first model beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy
from matplotlib.axes import Axes

from grasp_deploy.bench.throughput.record import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.bench.throughput.verdict import Row, verdicts
from grasp_deploy.report.figure_style import (
    DASHED,
    INK,
    MARKERS,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    key_handle,
    line_handle,
    new_axes,
    powers_of_two,
)

TITLES = {
    "throughput": "Output tokens per second",
    "prefill": "Prompt tokens per second of the prefill",
    "decode": "Tokens per second of decoding",
}
Point = tuple[float, float, float, float]  # batch, middle, lower and upper end of the bar


def figures(record: ThroughputRecord) -> Iterator[Drawing]:
    """For each quantity: tokens per second, then the ratio to the first model."""
    judged = verdicts(record)
    for quantity in QUANTITIES:
        if cells := [cell for cell in record.cells if cell.rates(quantity)]:
            yield _rate_drawing(record, cells, quantity)
        if rows := [row for row in judged if row["quantity"] == quantity]:
            yield _ratio_drawing(record, rows, quantity)


def _rate_drawing(record: ThroughputRecord, cells: Sequence[Cell], quantity: str) -> Drawing:
    bars = f"median and quartiles of {len(cells[0].samples)} repetitions"
    axes = new_axes(TITLES[quantity], f"{record.settings.title}; {bars}")
    handles = []
    for index, model in enumerate(record.models):
        points: list[Point] = []
        for cell in (cell for cell in cells if cell.model == model.name):
            low, median, high = numpy.quantile(cell.rates(quantity), (0.25, 0.5, 0.75)).tolist()
            points.append((cell.batch, median, low, high))
        if points:
            _line(axes, index, points)
            handles.append(line_handle(index, model.name))
    _batch_axes(axes, "tokens per second", [cell.batch for cell in cells])
    count_from_zero(axes)
    return finished(quantity, TITLES[quantity], axes, handles)


def _ratio_drawing(record: ThroughputRecord, rows: Sequence[Row], quantity: str) -> Drawing:
    title = f"{QUANTITIES[quantity].capitalize()} against the first model"
    axes = new_axes(title, f"{record.settings.title}; bars: 95 % interval")
    axes.axhline(1, color=INK, linewidth=1.2)
    handles = []
    for index, model in enumerate(record.models):
        measured = [row for row in rows if row["model"] == model.name]
        if not measured:
            continue
        shift = 2 ** (0.09 * (index - len(record.models) / 2))  # bars stand side by side
        points: list[Point] = []
        for row in measured:
            ends = row["interval"] or (row["ratio"], row["ratio"])
            points.append((row["batch"] * shift, row["ratio"], *ends))
        _line(axes, index, points)
        batches, ideals = zip(
            *sorted((row["batch"], row["ideal"]) for row in measured), strict=True
        )
        axes.plot(batches, ideals, color=color_of(index), linestyle=DASHED, linewidth=1.3)
        handles.append(line_handle(index, model.name))
    handles.append(key_handle(record.baseline, color=INK))
    handles.append(key_handle("ideal: by bytes moved and operations", DASHED))
    _batch_axes(axes, "times the first model", [row["batch"] for row in rows])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))  # room around a ratio of 1
    return finished(f"{quantity}-ratio", title, axes, handles)


def _batch_axes(axes: Axes, unit: str, batches: Sequence[int]) -> None:
    axes.set_ylabel(unit)
    axes.set_xlabel("batch size, sequences")
    powers_of_two(axes, batches)


def _line(axes: Axes, index: int, points: Sequence[Point]) -> None:
    batches, middles, lows, highs = numpy.array(sorted(points)).T
    axes.errorbar(
        batches,
        middles,
        yerr=(middles - lows, highs - middles),
        color=color_of(index),
        marker=MARKERS[index % len(MARKERS)],
        capsize=3,
        elinewidth=1.2,
    )
