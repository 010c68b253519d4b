"""Loss against the size of the weights, or against measured speed, with the knee marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from grasp_deploy.report.figure_style import (
    MARKERS,
    MUTED,
    Drawing,
    color_of,
    finished,
    key_handle,
    line_handle,
    new_axes,
)
from grasp_deploy.report.losses.points import LossPoint, LossRecord, by_size, frontier_and_knee

KNEE_COLOR, KNEE_SIZE = "#d55e00", 13


def figures(record: LossRecord) -> Iterator[Drawing]:
    """All models by size; nothing for fewer than two losses."""
    if len(points := record.points) > 1:
        unit, name = (2**30, "GiB") if by_size(points)[0][0] >= 2**30 else (2**20, "MiB")
        sizes = [size / unit for size, _ in by_size(points)]
        note = f"{record.text}; bars: one standard error"
        yield frontier_drawing("size", note, f"weights, {name}", points, sizes)


def frontier_drawing(
    by: str,
    note: str,
    label: str,
    points: Sequence[LossPoint],
    values: Sequence[float],
    more_is_better: bool = False,
) -> Drawing:
    """Loss `by` the `values` of points, with a line through those that no other beats."""
    title = f"Loss against {by}"
    axes = new_axes(title, note)
    losses = [point.loss for point in points]
    handles: list[Artist] = []
    for index, (point, value) in enumerate(zip(points, values, strict=True)):
        color, marker = color_of(index), MARKERS[index % len(MARKERS)]
        error = point.error or 0.0
        axes.errorbar(value, point.loss, yerr=error, color=color, marker=marker, capsize=3)
        handles.append(line_handle(index, point.name))
    signed = [-value if more_is_better else value for value in values]
    frontier, knee = frontier_and_knee(list(zip(signed, losses, strict=True)))
    best = [(values[place], losses[place]) for place in frontier]
    axes.plot(*zip(*best, strict=True), color=MUTED, linewidth=1.4, zorder=1)
    handles.append(key_handle("frontier: none is better in both"))
    if knee is not None:
        ring: dict[str, Any] = {
            "marker": "o",
            "zorder": 3,
            "markersize": KNEE_SIZE,
            "linestyle": "none",
            "fillstyle": "none",
        }
        axes.plot([values[knee]], [losses[knee]], color=KNEE_COLOR, markeredgewidth=1.6, **ring)
        handles.append(Line2D([], [], color=KNEE_COLOR, label="knee", **ring))
    axes.margins(0.08)
    axes.set_xlabel(label)
    axes.set_ylabel("loss, nats per token")
    return finished(f"loss-by-{by}", title, axes, handles)
