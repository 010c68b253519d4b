"""What the benches show alike: cells of tables, gains, and figures with a line for each model."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.record import BenchCell, BenchRecord
from grasp_deploy.report.section import Drawing
from grasp_deploy.report.tables import add_group, figure_table
from grasp_deploy.stats.noise import TOO_FEW, UNDECIDED, Difference, differences
from grasp_deploy.stats.wording import grouped, points_by_outcome, span

TOLERANCE = 0.005  # relative error of weights and KV cache, which config.json determines
Cell = TypeVar("Cell", bound=BenchCell)


def number(value: float) -> str:
    """Format a value: no decimals from 100, one from 10, else two."""
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


def rate_cells(cell: Cell, dense: Cell | None) -> list[str | Text]:
    """A cell's rate, and its change against the first model's."""
    return [with_spread(cell.rates), paired_change(cell.rates, dense.rates if dense else [])]


def cell_table(
    record: BenchRecord[Any, Cell],
    title: str,
    heads: Sequence[str],
    notes: Sequence[str],
    point: Callable[[Cell], str],
    figures: Callable[[Cell, Cell | None], list[str | Text]],
) -> Table:
    """Table with a row per cell, grouped by point; `figures(cell, first model's cell)` fills it."""
    table = figure_table(title, heads, notes)
    for cells in grouped(record.cells, point):
        rows = [[cell.model, *figures(cell, record.dense_cell(cell))] for cell in cells]
        add_group(table, point(cells[0]), rows)
    return table


def gains(
    record: BenchRecord[Any, Cell], is_whole: Callable[[Cell], bool]
) -> list[tuple[Cell, Cell, Difference]]:
    """Each pair of cells that are whole, the first model's leading, and how their rates differ."""
    pairs = [
        (dense, cell)
        for cell in record.cells
        if (dense := record.dense_cell(cell)) and is_whole(dense) and is_whole(cell)
    ]
    results = differences([(dense.rates, cell.rates) for dense, cell in pairs])
    return [(*pair, result) for pair, result in zip(pairs, results, strict=True)]


def gain_in_words(found: Mapping[Any, Difference], what: str, repetitions: int) -> str:
    """Put differences by point in words: `1.10x to 1.42x WHAT: faster at 4 and 8, slower at 1`."""
    outcomes = points_by_outcome([(one.outcome, point) for point, one in found.items()])
    if any(one.outcome == UNDECIDED for one in found.values()):
        outcomes = TOO_FEW.format(repetitions)
    return f"{span([one.ratio for one in found.values()], '.2f', 'x')} {what}: {outcomes}"


def relative_error(measured: float, predicted: float) -> float:
    """`measured / predicted - 1`; a prediction of 0 counts as 1."""
    return measured / max(predicted, 1) - 1


def prediction_outcome(error: float) -> str:
    """The outcome for a relative error of weights or KV cache."""
    return "as predicted" if abs(error) <= TOLERANCE else "not as predicted"


def line_drawing(
    record: BenchRecord[Any, Any],
    heading: tuple[str, str, str],
    labels: tuple[str, str],
    cells: Sequence[Any],
    at: Callable[[Any], float],
    curves: Mapping[str, Callable[[Any], float]],
) -> Drawing:
    """A line for each model and curve; `at(cell)` orders the cells along x, evenly spaced.

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
    handles, dashes = [], dict(zip(curves, ("-", style.DASHED), strict=False))
    for index, model in enumerate(record.models):
        own = sorted((cell for cell in cells if cell.model == model.name), key=at)
        if not own:
            continue
        handles.append(style.line_handle(index, model.name))
        for curve, dash in dashes.items():
            x, y = [places.index(at(cell)) for cell in own], [curves[curve](cell) for cell in own]
            axes.plot(x, y, linestyle=dash, **style.look_of(index))
    style.count_from_zero(axes)
    if len(curves) > 1:
        handles += [style.key_handle(label, dash) for label, dash in dashes.items()]
    return style.finished(name, title, axes, handles)
