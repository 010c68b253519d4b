"""The losses of models side by side: loss against the size of the weights, and its knee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.files.sizes import format_bytes

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

LEAST_BEND = 0.05  # of the curve's height, below which a bend is none
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LossPoint:
    """A model with its loss in nats per token."""

    name: str
    footprint: Footprint
    loss: float
    error: float | None  # standard error of what it lost against the first model


class LossRecord(Protocol):
    """A record of the losses of several models on one text."""

    @property
    def benchmark(self) -> str:
        """The kind of record."""

    @property
    def points(self) -> list[LossPoint]:
        """The models, the one that others are compared with first; none without a loss."""

    @property
    def text(self) -> str:
        """The text in a few words."""


def frontier_of(curve: Curve) -> list[int]:
    """The places of the points that no other beats in both size and loss, the largest first."""
    best: list[int] = []
    for place in sorted(range(len(curve)), key=lambda place: curve[place]):
        if not best or curve[place][1] < curve[best[-1]][1]:
            best.append(place)
    return best[::-1]


def knee_of(curve: Curve) -> int | None:
    """The place of the frontier's point farthest below the line from its first to its last.

    Both axes count from 0 to 1 between those two (Satopää et al. 2011). None for a line, or for a
    curve that bends the other way.
    """
    frontier = frontier_of(curve)
    if len(frontier) < 3:
        return None
    (first_x, first_y), (last_x, last_y) = curve[frontier[0]], curve[frontier[-1]]

    def bend(place: int) -> float:
        x, y = curve[place]
        return (first_x - x) / (first_x - last_x) - (y - first_y) / (last_y - first_y)

    place = max(frontier, key=bend)
    return place if bend(place) >= LEAST_BEND else None


def headlines(record: LossRecord) -> list[dict[str, Any]]:
    """One sentence on the knee; none for fewer than three models."""
    points = record.points
    if len(points) < 3:
        return []
    line = {"benchmark": record.benchmark, "baseline": points[0].name}
    knee = knee_of(_by_size(points))
    if knee is None:
        sentence = "the curve of loss against size has no knee."
        return [{**line, "model": "these models", "outcome": "no knee", "sentence": sentence}]
    size, lost = points[knee].footprint.weight_bytes, points[knee].loss - points[0].loss
    sentence = (
        f"knee of the curve at {format_bytes(size)} of weights, {lost:+.3f} nats per token against "
        f"{points[0].name}; smaller models lose faster."
    )
    return [{**line, "model": points[knee].name, "outcome": "knee", "sentence": sentence}]


def _by_size(points: Sequence[LossPoint]) -> list[tuple[float, float]]:
    return [(float(point.footprint.weight_bytes), point.loss) for point in points]


def figures(record: LossRecord) -> Iterator[Drawing]:
    """All models by size, a line through the best, a ring at the knee; nothing for one loss."""
    from grasp_deploy.report import figure_style as style

    points, title, note = record.points, "Loss against size", record.text
    if len(points) < 2:
        return
    sizes = _by_size(points)
    unit, name = (2**30, "GiB") if sizes[0][0] >= 2**30 else (2**20, "MiB")
    curve = [(size / unit, loss) for size, loss in sizes]
    if any(point.error for point in points):
        note += f"; bars: one standard error of the difference from {points[0].name}"
    axes = style.new_axes(title, note)
    handles = []
    for place, (point, (x, y)) in enumerate(zip(points, curve, strict=True)):
        color, marker = style.color_of(place), style.marker_of(place)
        axes.errorbar(x, y, yerr=point.error or 0.0, capsize=3, color=color, marker=marker)
        handles.append(style.line_handle(place, point.name))
    best = [curve[place] for place in frontier_of(curve)]
    if len(best) > 1:
        axes.plot(*zip(*best, strict=True), color=style.MUTED, linewidth=1.4, zorder=1)
        handles.append(style.key_handle("frontier: none is better in both"))
    if (knee := knee_of(curve)) is not None:
        ring: dict[str, Any] = {"marker": "o", "markersize": 13, "linestyle": "none"}
        ring |= {"fillstyle": "none", "color": style.SERIES[2], "label": "knee"}
        handles += axes.plot(*([value] for value in curve[knee]), zorder=3, **ring)
    axes.margins(0.08)
    axes.set_xlabel(f"weights, {name}")
    axes.set_ylabel("loss, nats per token")
    yield style.finished("loss-by-size", title, axes, handles)
