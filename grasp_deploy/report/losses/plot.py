"""Loss against the size of the weights, or against measured speed, with the knee marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        sizes = {place: size / unit for place, (size, _) in enumerate(by_size(points))}
        yield frontier_drawing("size", record.text, f"weights, {name}", points, sizes)


def frontier_drawing(
    by: str,
    note: str,
    label: str,
    points: Sequence[LossPoint],
    values: Mapping[int, float],
    spans: Mapping[int, tuple[float, float]] | None = None,
) -> Drawing:
    """Loss `by` the `values` of points, by their places, and a line through the best.

    Values with `spans` between which they were measured are better the larger they are, others the
    smaller.
    """
    title = f"Loss against {by}"
    if any(points[place].error for place in values):
        note += f"; vertical bars: one standard error of the difference from {points[0].name}"
    axes = new_axes(title, note)
    handles: list[Artist] = []
    for place, value in values.items():
        point, color, marker = points[place], color_of(place), MARKERS[place % len(MARKERS)]
        across = None
        if spans is not None:
            low, high = spans[place]
            across = [[value - low], [high - value]]
        error = point.error or 0.0
        axes.errorbar(
            value, point.loss, yerr=error, xerr=across, color=color, marker=marker, capsize=3
        )
        handles.append(line_handle(place, point.name))
    curve = [(-v if spans else v, points[place].loss) for place, v in values.items()]
    frontier, knee = frontier_and_knee(curve)
    best = [(abs(curve[index][0]), curve[index][1]) for index in frontier]
    if len(best) > 1:
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
        x, y = abs(curve[knee][0]), curve[knee][1]
        axes.plot([x], [y], color=KNEE_COLOR, markeredgewidth=1.6, **ring)
        handles.append(Line2D([], [], color=KNEE_COLOR, label="knee", **ring))
    axes.margins(0.08)
    axes.set_xlabel(label)
    axes.set_ylabel("loss, nats per token")
    return finished(f"loss-by-{by}", title, axes, handles)
