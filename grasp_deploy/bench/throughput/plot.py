"""Throughput by batch size, and its ratio to the first model beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from matplotlib.artist import Artist
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
from grasp_deploy.stats.noise import FEWEST, of_repetitions

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
    note = of_repetitions("median and quartiles", len(cells[0].samples))
    axes = new_axes(TITLES[quantity], f"{record.settings.title}; {note}")
    points = []
    for cell in cells:
        low, median, high = numpy.quantile(cell.rates(quantity), (0.25, 0.5, 0.75)).tolist()
        points.append((cell.model, (cell.batch, median, low, high)))
    handles = _lines(record, axes, points)
    axes.set_ylabel("tokens per second")
    count_from_zero(axes)
    return finished(quantity, TITLES[quantity], axes, handles)


def _ratio_drawing(record: ThroughputRecord, rows: Sequence[Row], quantity: str) -> Drawing:
    title = f"{QUANTITIES[quantity].capitalize()} against the first model"
    note = of_repetitions("mean and 95 % interval", rows[0]["repetitions"])
    axes = new_axes(title, f"{record.settings.title}; {note}")
    axes.axhline(1, color=INK, linewidth=1.2)
    points, ideals = [], []
    for row in rows:
        ends = row["interval"] or (row["ratio"], row["ratio"])
        points.append((row["model"], (row["batch"], row["ratio"], *ends)))
        ideals.append((row["model"], (row["batch"], row["ideal"], row["ideal"], row["ideal"])))
    handles = _lines(record, axes, points)
    _lines(record, axes, ideals, linestyle=DASHED, linewidth=1.3, marker="", capsize=0)
    handles.append(key_handle(record.baseline, color=INK))
    handles.append(key_handle("ideal: by bytes moved and operations", DASHED))
    axes.set_ylabel("times the first model")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))  # room around a ratio of 1
    return finished(f"{quantity}-ratio", title, axes, handles)


def _lines(
    record: ThroughputRecord, axes: Axes, points: Sequence[tuple[str, Point]], **style: Any
) -> list[Artist]:
    """Draw the points of each model by batch size; gives the entries of the legend."""
    handles: list[Artist] = []
    for index, model in enumerate(record.models):
        own = sorted(point for name, point in points if name == model.name)
        if not own:
            continue
        batches, middles, lows, highs = numpy.array(own).T
        shift = 2 ** (0.06 * (index - len(record.models) / 2))  # bars stand side by side
        look = {"color": color_of(index), "marker": MARKERS[index % len(MARKERS)], "capsize": 3}
        look["linestyle"] = "" if record.settings.repetitions < FEWEST else "-"
        bars = (middles - lows, highs - middles)
        axes.errorbar(batches * shift, middles, yerr=bars, elinewidth=1.2, **{**look, **style})
        handles.append(line_handle(index, model.name))
    axes.set_xlabel("batch size, sequences")
    powers_of_two(axes, [int(point[0]) for _, point in points])
    return handles
