"""What the benches show alike: cells of tables, and figures with a line for each model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grasp_deploy.bench.record import BenchRecord

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing


def number(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def with_spread(values: Sequence[float]) -> str:
    """The median, with half the range of the repetitions as a share of it."""
    median = statistics.median(values)
    if len(values) == 1 or not median:
        return number(median)
    return f"{number(median)} ±{(max(values) - min(values)) / 2 / median:.0%}"


def paired_change(values: Sequence[float], before: Sequence[float]) -> str:
    """The geometric mean of the paired ratios, as a change; empty without pairs."""
    if not values or len(values) != len(before) or not all([*values, *before]):
        return ""
    ratios = (after / first for after, first in zip(values, before, strict=True))
    mean = statistics.geometric_mean(ratios) - 1
    return f"{mean:+.1%}" if abs(mean) < 0.0995 else f"{mean:+.0%}"


def line_drawing(
    record: BenchRecord[Any],
    heading: tuple[str, str, str],
    labels: tuple[str, str],
    cells: Sequence[Any],
    at: Callable[[Any], float],
    curves: Mapping[str, Callable[[Any], float]],
) -> Drawing:
    """A line for each model and curve over the cells, which stand side by side in order of `at`.

    `heading` is the figure's name, title and note, `labels` are those of both axes. The first curve
    is solid, the second dashed.
    """
    from grasp_deploy.report import figure_style as style

    (name, title, note), places = heading, sorted({at(cell) for cell in cells})
    axes = style.new_axes(title, note)
    axes.set_xticks(range(len(places)), labels=[f"{place:,g}" for place in places])
    axes.margins(x=0.08)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    handles = []
    for index, model in enumerate(record.models):
        own = sorted((cell for cell in cells if cell.model == model.name), key=at)
        if not own:
            continue
        handles.append(style.line_handle(index, model.name))
        look: dict[str, Any] = {"color": style.color_of(index), "marker": style.marker_of(index)}
        for curve, dashes in zip(curves.values(), ("-", style.DASHED), strict=False):
            x, y = [places.index(at(cell)) for cell in own], [curve(cell) for cell in own]
            axes.plot(x, y, linestyle=dashes, **look)
    style.count_from_zero(axes)
    if len(curves) > 1:
        keys = zip(curves, ("-", style.DASHED), strict=False)
        handles += [style.key_handle(label, dashes) for label, dashes in keys]
    return style.finished(name, title, axes, handles)
