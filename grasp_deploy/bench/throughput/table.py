"""Rich tables of a throughput record: what was measured, and gains against the first model."""

from __future__ import annotations

import statistics

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.table_cells import milliseconds, paired_change, with_spread
from grasp_deploy.bench.throughput.record import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.bench.throughput.verdict import Verdict, throughput_verdicts
from grasp_deploy.stats.noise import NO_DIFFERENCE, UNDECIDED
from grasp_deploy.stats.wording import grouped

SHORT_OUTCOMES = {NO_DIFFERENCE: "within noise", UNDECIDED: "undecided"}


def throughput_tables(record: ThroughputRecord) -> list[Table]:
    """The tables of a report."""
    return [throughput_table(record, judged_in="the next table"), gain_table(record)]


def throughput_table(record: ThroughputRecord, judged_in: str = "report") -> Table:
    """Output tokens per second, TTFT, TPOT and energy of each model, one batch size at a time.

    `judged_in` is where a reader finds whether changes are more than noise.
    """
    has_energy = any(s.joules is not None for cell in record.cells for s in cell.samples)
    table = Table(
        title=f"Throughput: {record.settings.title}",
        title_justify="left",
        caption="tokens/s of output: median ± half the range of the repetitions; Δ: mean change "
        "against the first model, repetition by repetition; whether it is more than noise: "
        f"{judged_in}",
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    heads = ["tokens/s", "Δ", "TTFT, ms", "Δ", "TPOT, ms", "Δ"]
    for head in [*heads, *(["J/token"] if has_energy else [])]:
        table.add_column(head, justify="right", no_wrap=True)
    for cells in grouped(record.cells, lambda cell: cell.batch):
        table.add_row(Text(f"batch {cells[0].batch:,}", style="bold"))
        for cell in cells:
            row = _throughput_row(cell, record.dense_cell(cell))
            table.add_row(Text(cell.model), *row, *([_energy(cell)] if has_energy else []))
        table.add_section()
    return table


def _throughput_row(cell: Cell, dense: Cell | None) -> list[str]:
    if not cell.samples:
        return ["does not fit", *[""] * 5]
    rates = cell.rates("throughput")
    row = [with_spread(rates), paired_change(rates, dense.rates("throughput") if dense else [])]
    for name in ("ttft_seconds", "tpot_seconds"):
        values, before = _times(cell, name), _times(dense, name) if dense else []
        row += [milliseconds(statistics.median(values)) if values else ""]
        row += [paired_change(values, before)]
    return row


def _times(cell: Cell, name: str) -> list[float]:
    return [value for sample in cell.samples if (value := getattr(sample, name))]


def _energy(cell: Cell) -> str:
    """Median joules per output token."""
    joules = [sample.joules for sample in cell.samples if sample.joules is not None]
    return f"{statistics.median(joules) / (cell.batch * cell.new_tokens):.3g}" if joules else ""


def gain_table(record: ThroughputRecord) -> Table:
    """Ratios to the first model, their intervals and the ideal, point by point."""
    table = Table(title="Speed against the first model", title_justify="left")
    table.add_column("model and batch", overflow="fold")
    for head in ("ratio", "interval", "ideal", "of ideal"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for rows_of_model in grouped(throughput_verdicts(record), lambda row: row.model):
        for rows in grouped(rows_of_model, lambda row: row.quantity):
            name = f"{rows[0].model}: {QUANTITIES[rows[0].quantity]}"
            table.add_row(Text(name, style="bold"))
            for row in rows:
                table.add_row(f"batch {row.batch:,}", *_gain_cells(row))
            table.add_section()
    return table


def _gain_cells(row: Verdict) -> list[str]:
    sure = row.outcome not in SHORT_OUTCOMES
    share = row.share_of_ideal if sure else None  # that of noise says nothing
    return [
        f"{row.ratio:.2f}x",
        f"{row.interval[0]:.2f}-{row.interval[1]:.2f}" if row.interval else "",
        f"{row.ideal:.2f}x",
        f"{share:.0%}" if share is not None else "",
        SHORT_OUTCOMES.get(row.outcome, row.outcome),
    ]
