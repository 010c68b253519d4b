"""Throughput by batch size, and its ratio to the first model beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from grasp_deploy.bench.throughput.record import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.bench.throughput.verdict import Verdict, throughput_verdicts
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
from grasp_deploy.stats.spread import quartiles

TITLES = {
    "throughput": "Output tokens per second",
    "prefill": "Prompt tokens per second of the prefill",
    "decode": "Tokens per second of decoding",
}
RATIO_TITLES = {
    "throughput": "Throughput against the first model",
    "prefill": "Prefill speed against the first model",
    "decode": "Decode speed against the first model",
}
IDEALS = {
    "throughput": "bytes moved and operations",
    "prefill": "operations",
    "decode": "bytes moved",
}


def figures(record: ThroughputRecord) -> Iterator[Drawing]:
    """For each quantity: tokens per second, then the ratio to the first model."""
    verdicts = throughput_verdicts(record)
    for quantity in QUANTITIES:
        if cells := [cell for cell in record.cells if cell.rates(quantity)]:
            yield _rate_drawing(record, cells, quantity)
        if rows := [row for row in verdicts if row.quantity == quantity]:
            yield _ratio_drawing(record, rows, quantity)


def _rate_drawing(record: ThroughputRecord, cells: Sequence[Cell], quantity: str) -> Drawing:
    title = TITLES[quantity]
    repetitions = len(cells[0].samples)
    bars = f"median and quartiles of {repetitions} repetitions" if repetitions > 1 else "one run"
    axes = new_axes(title, f"{record.settings.title}; {bars}")
    handles = []
    for index, model in enumerate(record.models):
        points = sorted((c.batch, c.rates(quantity)) for c in cells if c.model == model.name)
        if points:
            spreads = [quartiles(rates) for _, rates in points]
            _line(
                axes,
                index,
                [batch for batch, _ in points],
                [median for _, median, _ in spreads],
                [(lower, upper) for lower, _, upper in spreads],
            )
            handles.append(line_handle(index, model.name))
    axes.set_ylabel("tokens per second")
    axes.set_xlabel("batch size, sequences")
    powers_of_two(axes, [cell.batch for cell in cells])
    count_from_zero(axes)
    return finished(quantity, title, axes, handles)


def _ratio_drawing(record: ThroughputRecord, rows: Sequence[Verdict], quantity: str) -> Drawing:
    title = RATIO_TITLES[quantity]
    axes = new_axes(title, f"{record.settings.title}; bars: 95 % interval")
    axes.axhline(1, color=INK, linewidth=1.2)
    handles = []
    measured = {row.model for row in rows}
    names = [model.name for model in record.models if model.name in measured]
    for place, name in enumerate(names):
        index = list(record.footprints).index(name)
        points = sorted((row for row in rows if row.model == name), key=lambda row: row.batch)
        shift = 2 ** (0.09 * (place - (len(names) - 1) / 2))  # bars stand side by side
        batches = [row.batch * shift for row in points]
        ends = [row.interval or (row.ratio, row.ratio) for row in points]
        _line(axes, index, batches, [row.ratio for row in points], ends)
        ideals = [row.ideal for row in points]
        axes.plot(batches, ideals, color=color_of(index), linestyle=DASHED, linewidth=1.3)
        handles.append(line_handle(index, name))
    handles.append(key_handle(record.baseline, color=INK))
    handles.append(key_handle(f"ideal: the ratio of {IDEALS[quantity]}", DASHED))
    axes.set_ylabel("times the first model")
    axes.set_xlabel("batch size, sequences")
    powers_of_two(axes, [row.batch for row in rows])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))  # room around a ratio of 1
    return finished(f"{quantity}-ratio", title, axes, handles)


def _line(
    axes: Axes,
    index: int,
    batches: Sequence[float],
    middles: Sequence[float],
    ends: Sequence[tuple[float, float]],
) -> None:
    below = [middle - low for middle, (low, _) in zip(middles, ends, strict=True)]
    above = [high - middle for middle, (_, high) in zip(middles, ends, strict=True)]
    axes.errorbar(
        batches,
        middles,
        yerr=(below, above),
        color=color_of(index),
        marker=MARKERS[index % len(MARKERS)],
        capsize=3,
        elinewidth=1.2,
    )
