"""Rich tables of a throughput record: what was measured, and gains against the first model."""

from __future__ import annotations

import statistics

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.table import milliseconds, new_table, paired_change, with_spread
from grasp_deploy.bench.throughput.record import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.bench.throughput.verdict import Row, verdicts
from grasp_deploy.stats.noise import FASTER, NO_DIFFERENCE
from grasp_deploy.stats.wording import grouped

HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "Δ", "TPOT, ms", "Δ")
CAPTION = (
    "tokens/s of output: median ± half the range of the repetitions; Δ: mean change against the "
    "first model, repetition by repetition; the verdicts say if it is more than noise"
)
SHORT_OUTCOMES = {NO_DIFFERENCE: "within noise"}


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
            table.add_row(f"batch {row['batch']:,}", *_gain(row))
        table.add_section()
    return table


def _gain(row: Row) -> list[str]:
    outcome, share = str(row["outcome"]), row["share_of_ideal"]
    return [
        f"{row['ratio']:.2f}x",
        "{:.2f}-{:.2f}".format(*row["interval"]) if row["interval"] else "",
        f"{row['ideal']:.2f}x",
        f"{share:.0%}" if outcome == FASTER and share is not None else "",
        SHORT_OUTCOMES.get(outcome, outcome),
    ]
