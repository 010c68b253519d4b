"""Bars of the losses of a study that has one budget."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.study.record import Study
from benchmarks.study.tables import seeds_in_words, study_title
from grasp_deploy.report.figure_style import (
    INK,
    NOTE_SIZE,
    SERIES,
    SURFACE,
    Drawing,
    color_of,
    fitted,
    new_axes,
)

NAME_POINTS, NOTE_POINTS = 105.0, 165.0  # the names take of the plot's width
NAME_LINE_INCHES, GAP_INCHES = 0.13, 0.1
CUT_FROM = 1.5  # times the edge: a bar that ends closer behind it moves it
PALE = 0.55


def loss_bars(study: Study, corpus: str, file_name: str) -> Drawing:
    """A bar for each variant, the best on top; bars far longer than the others are cut."""
    (keep,) = study.budgets
    title = f"Loss on {corpus} at budget {keep:g}: {study_title(study)}"
    losses = {
        name: [row.excess_nats[corpus] for row in study.runs(name, keep)] for name in study.variants
    }
    order = sorted(losses, key=lambda name: statistics.fmean(losses[name]), reverse=True)
    edge = edge_of([statistics.fmean(losses[name]) for name in reversed(order)])
    names = [fitted(name, NOTE_SIZE, NAME_POINTS) for name in order]
    lines = max(name.count("\n") + 1 for name in names)
    cut = "" if edge == math.inf else " (paler bars are cut)"
    note = f"above the dense model's{cut}; {seeds_in_words(study)}"
    axes = new_axes(title, note, 1.2 + len(names) * (GAP_INCHES + NAME_LINE_INCHES * lines))
    axes.set_title(fitted(note, NOTE_SIZE, NOTE_POINTS))
    for place, name in enumerate(order):
        _bar(axes, place, losses[name], edge, color_of(0 if name == study.variants[0] else 1))
    axes.set_yticks(range(len(order)), labels=names, fontsize=NOTE_SIZE)
    axes.grid(visible=False, axis="y")
    _room(axes, [min(edge, nats) for of_name in losses.values() for nats in of_name])
    axes.set_xlabel("excess loss, nats per token")
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are made with their figure"
    return Drawing(file_name, title, figure)


def edge_of(means: Sequence[float]) -> float:
    """The length that bars are cut at, from their ascending lengths; infinity if none is cut.

    Three times the median of the best, so that a few bad variants do not hide the others.
    """
    edge = 3 * statistics.median(means[: len(SERIES)])
    return edge if 0 < CUT_FROM * edge < means[-1] else math.inf


def _bar(axes: Axes, place: int, losses: Sequence[float], edge: float, color: str) -> None:
    mean = statistics.fmean(losses)
    alpha = 1.0 if mean <= edge else PALE
    axes.barh(place, min(mean, edge), 0.72, color=color, alpha=alpha, linewidth=0)
    if len(losses) > 1 and mean <= edge:
        axes.hlines(place, min(losses), min(edge, max(losses)), color=INK, linewidth=1.2)
    axes.annotate(
        nats_text(mean),
        (max(0.0, min(edge, max(losses))), place),
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize=NOTE_SIZE,
        bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.8},
    )


def nats_text(nats: float) -> str:
    """Three decimals, or as many as show two digits of a small loss."""
    if nats == 0 or abs(nats) >= 0.01:
        return f"{nats:.3f}"
    if abs(nats) < 1e-4:
        return f"{nats:.1e}"
    return f"{nats:.{1 - math.floor(math.log10(abs(nats)))}f}"


def _room(axes: Axes, ends: Sequence[float]) -> None:
    low, high = min(0.0, *ends), max(0.0, *ends)
    span = (high - low) or 1.0
    axes.xaxis.set_major_locator(MaxNLocator(5, prune="upper"))  # none that the edge would cut
    axes.set_xlim(low - 0.05 * span if low else 0.0, high + 0.22 * span)
