"""The losses of models side by side: loss against the size of the weights, and its knee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.files.sizes import BINARY_UNITS, format_bytes

if TYPE_CHECKING:
    from grasp_deploy.evaluate.compare import CompareRecord
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


def headlines(record: CompareRecord) -> list[dict[str, Any]]:
    """One sentence on the knee; none for fewer than three models."""
    points = record.points
    if len(points) < 3:
        return []
    model, outcome = "these models", "no knee"
    sentence = "the curve of loss against size has no knee."
    if (knee := knee_of(_by_size(points))) is not None:
        model, outcome = points[knee].name, "knee"
        sentence = (
            f"knee of the curve at {format_bytes(points[knee].footprint.weight_bytes)} of weights, "
            f"{points[knee].loss - points[0].loss:+.3f} nats per token against {points[0].name}; "
            "smaller models lose faster."
        )
    line = {"benchmark": record.benchmark, "baseline": points[0].name}
    return [{**line, "model": model, "outcome": outcome, "sentence": sentence}]


def _by_size(points: Sequence[LossPoint]) -> list[tuple[float, float]]:
    return [(float(point.footprint.weight_bytes), point.loss) for point in points]


def figures(record: CompareRecord) -> Iterator[Drawing]:
    """All models by size, a line through the best, a ring at the knee; nothing for one loss."""
    from grasp_deploy.report import figure_style as style

    points, title, note = record.points, "Loss against size", record.text
    if len(points) < 2:
        return
    unit = "GiB" if points[0].footprint.weight_bytes >= BINARY_UNITS["GiB"] else "MiB"
    curve = [(size / BINARY_UNITS[unit], loss) for size, loss in _by_size(points)]
    if any(point.error for point in points):
        note += f"; bars: one standard error of the difference from {points[0].name}"
    axes = style.new_axes(title, note)
    handles = []
    for place, (point, at) in enumerate(zip(points, curve, strict=True)):
        axes.errorbar(*at, yerr=point.error or 0.0, capsize=3, **style.look_of(place))
        handles.append(style.line_handle(place, point.name))
    best = [curve[place] for place in frontier_of(curve)]
    if len(best) > 1:
        axes.plot(*zip(*best, strict=True), color=style.MUTED, linewidth=1.4, zorder=1)
        handles.append(style.key_handle("frontier: none is better in both"))
    if (knee := knee_of(curve)) is not None:
        ring: dict[str, Any] = {"marker": "o", "markersize": 13, "fillstyle": "none"}
        ring |= {"linestyle": "none", "color": style.SERIES[2], "label": "knee"}
        handles += axes.plot(*([value] for value in curve[knee]), zorder=3, **ring)
    axes.margins(0.08)
    axes.set_xlabel(f"weights, {unit}")
    axes.set_ylabel("loss, nats per token")
    yield style.finished("loss-by-size", title, axes, handles)
