"""Throughput and latency, as tables, sentences and figures: faster, slower, or neither."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.ideal import Case, ideal_gains, reason_lines, share_of_ideal
from grasp_deploy.bench.table import milliseconds, new_table, paired_change, with_spread
from grasp_deploy.bench.throughput import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.stats.noise import (
    FASTER,
    FEWEST,
    NO_DIFFERENCE,
    SLOWER,
    SMALLEST_RATIO,
    TOO_FEW,
    UNDECIDED,
    differences,
    of_repetitions,
)
from grasp_deploy.stats.wording import common_outcome, grouped, listed, points_by_outcome, span

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from grasp_deploy.report.figure_style import Drawing

Row = dict[str, Any]
Point = tuple[float, float, float, float]  # batch, middle, lower and upper end of the bar
ENOUGH_OF_IDEAL = 0.8
HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "Δ", "TPOT, ms", "Δ")
CAPTION = (
    "tokens/s of output: median ± half the range of the repetitions; Δ: mean change against the "
    "first model, repetition by repetition; the verdicts say if it is more than noise"
)
TITLES = {
    "throughput": "Output tokens per second",
    "prefill": "Prompt tokens per second of the prefill",
    "decode": "Tokens per second of decoding",
}


def throughput_table(record: ThroughputRecord) -> Table:
    """Output tokens per second, TTFT, TPOT and energy of each model, one batch size at a time."""
    has_energy = any(s.joules is not None for cell in record.cells for s in cell.samples)
    heads = (*HEADS, "J/token") if has_energy else HEADS
    table = new_table(f"Throughput: {record.settings.title}", heads, CAPTION)
    for cells in grouped(record.cells, lambda cell: cell.batch):
        table.add_row(Text(f"batch {cells[0].batch:,}", style="bold"))
        for cell in cells:
            table.add_row(Text(cell.model), *_figures(cell, record.dense_cell(cell), has_energy))
        table.add_section()
    return table


def _figures(cell: Cell, dense: Cell | None, has_energy: bool) -> list[str]:
    if not cell.samples:
        return ["does not fit"]
    rates = cell.rates("throughput")
    row = [with_spread(rates), paired_change(rates, dense.rates("throughput") if dense else [])]
    for name in ("ttft_seconds", "tpot_seconds"):
        values, before = _values(cell, name), _values(dense, name) if dense else []
        row += [milliseconds(statistics.median(values)) if values else ""]
        row += [paired_change(values, before)]
    joules = _values(cell, "joules")
    if has_energy and joules:
        row += [f"{statistics.median(joules) / (cell.batch * cell.new_tokens):.3g}"]
    return row


def _values(cell: Cell, name: str) -> list[float]:
    return [value for sample in cell.samples if (value := getattr(sample, name))]


def gain_table(record: ThroughputRecord) -> Table:
    """Ratios to the first model, their intervals and the ideal, point by point."""
    heads = ("model and batch", "ratio", "interval", "ideal", "of ideal", "verdict")
    table = new_table("Speed against the first model", heads)
    for rows in grouped(verdicts(record), lambda row: (row["model"], row["quantity"])):
        name = f"{rows[0]['model']}: {QUANTITIES[rows[0]['quantity']]}"
        table.add_row(Text(name, style="bold"))
        for row in rows:
            outcome, share = str(row["outcome"]), row["share_of_ideal"]
            table.add_row(
                f"batch {row['batch']:,}",
                f"{row['ratio']:.2f}x",
                "{:.2f}-{:.2f}".format(*row["interval"]) if row["interval"] else "",
                f"{row['ideal']:.2f}x",
                f"{share:.0%}" if outcome == FASTER and share is not None else "",
                "within noise" if outcome == NO_DIFFERENCE else outcome,
            )
        table.add_section()
    return table


def verdicts(record: ThroughputRecord) -> list[Row]:
    """One JSON row for each model but the first, each of its cells, and each quantity.

    `ratio` is that of the rates, over 1 if the model is faster. `interval` is None below
    three repetitions, `share_of_ideal` where the ideal is hardly above 1.
    """
    pairs = [
        (dense, cell)
        for cell in record.cells
        if cell.samples and (dense := record.dense_cell(cell)) and dense.samples
    ]
    sizes, rows = record.footprints, []
    for quantity in QUANTITIES:
        measured = [pair for pair in pairs if all(cell.rates(quantity) for cell in pair)]
        rates = [(dense.rates(quantity), cell.rates(quantity)) for dense, cell in measured]
        results = differences(rates, len(pairs) * len(QUANTITIES))
        for (dense, cell), difference in zip(measured, results, strict=True):
            ideal = ideal_gains(sizes[dense.model], sizes[cell.model], dense)[quantity]
            rows.append(
                {
                    **_shared(record, cell.model),
                    "quantity": quantity,
                    "batch": cell.batch,
                    "repetitions": len(cell.samples),
                    **asdict(difference),
                    "ideal": ideal,
                    "share_of_ideal": share_of_ideal(difference.ratio, ideal),
                }
            )
    return rows


def _shared(record: ThroughputRecord, model: str) -> Row:
    cell = record.cells[0]
    return record.line(
        model, engine=cell.engine, prompt_tokens=cell.prompt_tokens, new_tokens=cell.new_tokens
    )


def headlines(record: ThroughputRecord) -> list[Row]:
    """For each model and quantity one sentence over all batches; then likely reasons.

    Batches that did not fit are named as well, also those of the first model.
    """
    lines = []
    for cells in grouped((c for c in record.cells if not c.samples), lambda cell: cell.model):
        batches = listed(cell.batch for cell in cells)
        refusal = f"not measured at batch {batches}: {cells[0].refused}."
        shared = _shared(record, cells[0].model)
        lines.append({**shared, "outcome": "not measured", "sentence": refusal})
    for rows in grouped(verdicts(record), lambda row: row["model"]):
        shared = _shared(record, rows[0]["model"])
        by_quantity = grouped(rows, lambda row: row["quantity"])
        for group in by_quantity:
            about = {
                "quantity": group[0]["quantity"],
                "outcome": common_outcome(row["outcome"] for row in group),
            }
            lines.append({**shared, **about, "sentence": _sentence(group)})
        cases = [_case(record, row, g) for g in by_quantity for row in g if row["interval"]]
        lines += reason_lines(filter(None, cases), shared)
    return lines


def _sentence(rows: Sequence[Row]) -> str:
    ratios = span([row["ratio"] for row in rows], ".2f", "x")
    batches = span([row["batch"] for row in rows], ",")
    quantity, baseline = QUANTITIES[rows[0]["quantity"]], rows[0]["baseline"]
    outcomes = points_by_outcome([(row["outcome"], row["batch"]) for row in rows])
    if rows[0]["outcome"] == UNDECIDED:
        outcomes = TOO_FEW.format(rows[0]["repetitions"])
    outcomes = outcomes.replace(SLOWER, f"{SLOWER} than {baseline}")
    sentence = f"{ratios} the {quantity} of {baseline} at batch {batches}: {outcomes}"
    # A ratio within noise, or below 1, has no share of the way.
    sure = [row for row in rows if row["outcome"] == FASTER]
    if shares := [row["share_of_ideal"] for row in sure if row["share_of_ideal"] is not None]:
        ideals = span([row["ideal"] for row in sure], ".2f", "x")
        sentence += f"; {span(shares, '.0%')} of the way to the ideal {ideals}"
    return f"{sentence}."


def _case(record: ThroughputRecord, row: Row, rows: Sequence[Row]) -> Case | None:
    """The case of a model that ought to be faster, and is slower or surely short of the ideal."""
    highest_ratio = row["interval"][1]
    share = share_of_ideal(highest_ratio, row["ideal"])
    is_short = share is not None and share < ENOUGH_OF_IDEAL
    if not is_short and (row["outcome"] != SLOWER or row["ideal"] * SMALLEST_RATIO <= 1):
        return None
    return Case(
        dense=record.footprints[row["baseline"]],
        pruned=record.footprints[row["model"]],
        batch=row["batch"],
        gain_by_batch={other["batch"]: other["ratio"] for other in rows},
        highest_gain=highest_ratio,
        on_gpu="gpu" in record.machine and record.settings.device != "cpu",
    )


def figures(record: ThroughputRecord) -> Iterator[Drawing]:
    """For each quantity: tokens per second, then the ratio to the first model."""
    judged = verdicts(record)
    for quantity in QUANTITIES:
        if cells := [cell for cell in record.cells if cell.rates(quantity)]:
            yield _rate_drawing(record, cells, quantity)
        if rows := [row for row in judged if row["quantity"] == quantity]:
            yield _ratio_drawing(record, rows, quantity)


def _rate_drawing(record: ThroughputRecord, cells: Sequence[Cell], quantity: str) -> Drawing:
    import numpy

    from grasp_deploy.report import figure_style as style

    note = of_repetitions("median and quartiles", len(cells[0].samples))
    axes = style.new_axes(TITLES[quantity], f"{record.settings.title}; {note}")
    points = []
    for cell in cells:
        low, median, high = numpy.quantile(cell.rates(quantity), (0.25, 0.5, 0.75)).tolist()
        points.append((cell.model, (cell.batch, median, low, high)))
    handles = _lines(record, axes, points)
    axes.set_ylabel("tokens per second")
    style.count_from_zero(axes)
    return style.finished(quantity, TITLES[quantity], axes, handles)


def _ratio_drawing(record: ThroughputRecord, rows: Sequence[Row], quantity: str) -> Drawing:
    from grasp_deploy.report import figure_style as style

    title = f"{QUANTITIES[quantity].capitalize()} against the first model"
    note = of_repetitions("mean and 95 % interval", rows[0]["repetitions"])
    axes = style.new_axes(title, f"{record.settings.title}; {note}")
    axes.axhline(1, color=style.INK, linewidth=1.2)
    points, ideals = [], []
    for row in rows:
        ends = row["interval"] or (row["ratio"], row["ratio"])
        points.append((row["model"], (row["batch"], row["ratio"], *ends)))
        ideals.append((row["model"], (row["batch"], *[row["ideal"]] * 3)))
    handles = _lines(record, axes, points)
    _lines(record, axes, ideals, linestyle=style.DASHED, linewidth=1.3, marker="", capsize=0)
    handles.append(style.key_handle(record.baseline, color=style.INK))
    handles.append(style.key_handle("ideal: by bytes moved and operations", style.DASHED))
    axes.set_ylabel("times the first model")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))  # room around a ratio of 1
    return style.finished(f"{quantity}-ratio", title, axes, handles)


def _lines(
    record: ThroughputRecord, axes: Axes, points: Sequence[tuple[str, Point]], **own_style: Any
) -> list[Artist]:
    """Draw the points of each model by batch size; gives the entries of the legend."""
    import numpy

    from grasp_deploy.report import figure_style as style

    handles: list[Artist] = []
    for index, model in enumerate(record.models):
        own = sorted(point for name, point in points if name == model.name)
        if not own:
            continue
        batches, middles, lows, highs = numpy.array(own).T
        shift = 2 ** (0.06 * (index - len(record.models) / 2))  # bars stand side by side
        marker = style.MARKERS[index % len(style.MARKERS)]
        look = {"color": style.color_of(index), "marker": marker, "capsize": 3, "elinewidth": 1.2}
        look["linestyle"] = "" if record.settings.repetitions < FEWEST else "-"
        bars = (middles - lows, highs - middles)
        axes.errorbar(batches * shift, middles, yerr=bars, **{**look, **own_style})
        handles.append(style.line_handle(index, model.name))
    axes.set_xlabel("batch size, sequences")
    style.powers_of_two(axes, [int(point[0]) for _, point in points])
    return handles
