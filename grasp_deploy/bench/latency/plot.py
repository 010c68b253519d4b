"""Staircases: time against the width of the FFN and against KV groups, with the line of prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grasp_deploy.bench.latency.record import LatencyRecord
from grasp_deploy.checkpoint.format.shapes import LayerShape
from grasp_deploy.compression.latency_table import PHASES, Point
from grasp_deploy.report.figure_style import (
    DASHED,
    MARKERS,
    Drawing,
    color_of,
    finished,
    key_handle,
    line_handle,
    new_axes,
)
from grasp_deploy.stats.noise import of_repetitions
from grasp_deploy.stats.wording import grouped

KINDS = {"ffn_channels": ("ffn", "FFN channels"), "kv_groups": ("kv", "KV groups")}
ALL = {"ffn_channels": "intermediate_size", "kv_groups": "num_key_value_heads"}


def figures(record: LatencyRecord) -> Iterator[Drawing]:
    """For each phase: shapes that lack FFN channels alone, then those that lack groups alone."""
    for phase in PHASES:
        for kind, (name, label) in KINDS.items():
            (other,) = KINDS.keys() - {kind}
            points = [
                p for p in record.cells if getattr(p, other) == getattr(_layer(record), ALL[other])
            ]
            if points:
                title = f"Time of {phase} by {label}"
                yield _drawing(record, points, phase, kind, f"latency-{phase}-{name}", title)


def _drawing(
    record: LatencyRecord, points: Sequence[Point], phase: str, kind: str, name: str, title: str
) -> Drawing:
    note = of_repetitions("median and quartiles", len(points[0].samples))
    axes = new_axes(title, f"{record.dense.name}, {record.settings.engine}; {note}")
    handles: list[Artist] = []
    for index, group in enumerate(grouped(points, lambda p: (p.batch, p.context)), start=1):
        _staircase(axes, group, phase, kind, index, getattr(_layer(record), ALL[kind]))
        _line(axes, record, group[0], phase, kind, index)
        label = f"batch {group[0].batch:,}, context {group[0].context:,}"
        handles.append(line_handle(index, label))
    axes.set_xlabel(f"{KINDS[kind][1]} of every layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    axes.set_ylabel("time, of the dense model's")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return finished(name, title, axes, [*handles, key_handle("linear price", DASHED)])


def _staircase(
    axes: Axes, points: Sequence[Point], phase: str, kind: str, index: int, full: int
) -> None:
    """Measured shares of the dense time, which is the last point."""
    points = sorted(points, key=lambda point: int(getattr(point, kind)))
    quartiles = [numpy.quantile(p.shares_of_dense(phase), (0.25, 0.5, 0.75)) for p in points]
    low, middle, high = numpy.array([*quartiles, (1, 1, 1)]).T
    widths = [*(getattr(point, kind) for point in points), full]
    marker = MARKERS[index % len(MARKERS)]
    bars = (middle - low, high - middle)
    axes.errorbar(widths, middle, yerr=bars, color=color_of(index), marker=marker, capsize=3)


def _line(
    axes: Axes, record: LatencyRecord, point: Point, phase: str, kind: str, index: int
) -> None:
    """The price of this kind, from no unit of it to all of them."""
    price = record.price(point.batch, point.context, phase)
    own = price.ffn_seconds if kind == "ffn_channels" else price.kv_seconds
    ends = (0, getattr(_layer(record), ALL[kind]))
    heights = (1 - own / price.dense_seconds, 1)
    axes.plot(ends, heights, color=color_of(index), linestyle=DASHED, linewidth=1.3)


def _layer(record: LatencyRecord) -> LayerShape:
    return record.dense.footprint.layers[0]
