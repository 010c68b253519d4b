"""The losses of models side by side: loss against the size of the weights, and its knee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.files.sizes import format_bytes

if TYPE_CHECKING:
    from grasp_deploy.evaluate.compare import CompareRecord, LossCell
    from grasp_deploy.report.figure_style import Drawing

LEAST_BEND = 0.05  # of the curve's height, below which a bend is none
LEAST_POINTS = 4  # any three that are no line have a bend
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LossPoint:
    """A model with its loss and its divergence from the first model, in nats per token."""

    name: str
    footprint: Footprint
    loss: float
    error: float | None  # standard error of what it lost against the first model
    divergence: float | None = None


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
    if len(frontier) < LEAST_POINTS:
        return None
    (first_x, first_y), (last_x, last_y) = curve[frontier[0]], curve[frontier[-1]]

    def bend(place: int) -> float:
        x, y = curve[place]
        return (first_x - x) / (first_x - last_x) - (y - first_y) / (last_y - first_y)

    place = max(frontier, key=bend)
    return place if bend(place) >= LEAST_BEND else None


def headlines(record: CompareRecord) -> list[dict[str, Any]]:
    """The verdict on each model but the first, and a sentence on the knee of enough models."""
    dense, points = record.models[0].name, record.points
    lines = [
        {"model": model.name, **quality_verdict([_row(cells, place) for cells in record.texts], [])}
        for place, model in enumerate(record.models[1:], start=1)
    ]
    judged = any(not cell.is_calibrated_on for cells in record.texts for cell in cells)
    if judged and (knee := knee_of(_by_size(points))) is not None:
        sentence = (
            f"knee of the curve at {format_bytes(points[knee].footprint.weight_bytes)} of weights, "
            f"{points[knee].loss - points[0].loss:+.3f} nats per token against {dense}; "
            "smaller models lose faster."
        )
        lines.append({"model": points[knee].name, "outcome": "knee", "sentence": sentence})
    return [{"benchmark": record.benchmark, "baseline": dense, **line} for line in lines]


def _row(cells: Sequence[LossCell], place: int) -> dict[str, Any]:
    """A text's row of a verdict, from its cells."""
    dense, pruned = cells[0], cells[place]
    count = pruned.data.get("sequences")
    return {
        "name": pruned.text,
        "calibrated_on": pruned.is_calibrated_on,
        "dense": {"perplexity": dense.perplexity},
        "pruned": {"perplexity": pruned.perplexity},
        "excess_error": pruned.excess_error,
        "sequences": count if isinstance(count, int) else 0,  # unknown: no noise can be told
    }


def _by_size(points: Sequence[LossPoint]) -> list[tuple[float, float]]:
    return [(float(point.footprint.weight_bytes), point.loss) for point in points]


def figures(record: CompareRecord) -> Iterator[Drawing]:
    """Loss by size, a line through the best, a ring at the knee; how far models drifted.

    Nothing for one model.
    """
    from grasp_deploy.report import figure_style as style

    points, note = record.points, record.text
    if len(points) < 2:
        return
    drifts = [(p.name, p.footprint, p.divergence, None) for p in points if p.divergence is not None]
    if any(point.error for point in points):
        note += f"; bars: one standard error of the difference from {points[0].name}"
    losses = [(point.name, point.footprint, point.loss, point.error) for point in points]
    title = "Loss against size"
    axes, curve, handles = style.against_size(title, note, "loss, nats per token", losses)
    best = [curve[place] for place in frontier_of(curve)]
    if len(best) > 1:
        axes.plot(*zip(*best, strict=True), color=style.MUTED, linewidth=1.4, zorder=1)
        handles.append(style.key_handle("frontier: none is better in both"))
    if (knee := knee_of(curve)) is not None:
        ring: dict[str, Any] = {"marker": "o", "markersize": 13, "fillstyle": "none"}
        ring |= {"linestyle": "none", "color": style.SERIES[2], "label": "knee"}
        handles += axes.plot(*([value] for value in curve[knee]), zorder=3, **ring)
    yield style.finished("loss-by-size", title, axes, handles)
    if len(drifts) == len(points):
        title = f"Divergence from {points[0].name}"
        axes, _, handles = style.against_size(title, record.text, "KL, nats per token", drifts)
        yield style.finished("divergence-by-size", title, axes, handles)
