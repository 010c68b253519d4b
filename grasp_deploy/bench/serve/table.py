"""The rich table of a serve record."""

from __future__ import annotations

import statistics

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.serve.record import Cell, ServeRecord
from grasp_deploy.bench.table import milliseconds, new_table, paired_change, with_spread
from grasp_deploy.stats.wording import grouped

HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "TPOT, ms", "E2E, ms", "failed")


def serve_table(record: ServeRecord) -> Table:
    """Rates, latencies and failed requests of each model's server under each load."""
    settings = record.settings
    title = (
        f"Load on the live server: {settings.requests:,} requests of "
        f"{settings.prompt_tokens:,} + {settings.new_tokens:,} tokens"
    )
    caption = (
        "tokens/s of output; Δ: change against the first model; latencies: median/99th percentile"
    )
    slo = settings.slo_ms
    if slo:
        caption += "; good/s: requests within the SLO"
    table = new_table(title, (*HEADS, "good/s") if slo else HEADS, caption)
    for cells in grouped(record.cells, lambda cell: cell.load):
        table.add_row(Text(cells[0].load.title, style="bold"))
        for cell in cells:
            good = [sample.goodput_requests_per_second or 0.0 for sample in cell.samples]
            figures = _figures(cell, record.dense_cell(cell))
            figures += [f"{statistics.median(good):,.2f}"] if slo else []
            table.add_row(Text(cell.model), *figures)
        table.add_section()
    return table


def _figures(cell: Cell, dense: Cell | None) -> list[str | Text]:
    latencies = (
        "/".join(milliseconds(cell.latency(name, percentile)) for percentile in ("p50", "p99"))
        for name in ("ttft", "tpot", "e2e")
    )
    asked = cell.requests * len(cell.samples)
    return [
        with_spread(cell.rates),
        paired_change(cell.rates, dense.rates if dense else []),
        *latencies,
        Text(f"{cell.failed:,} of {asked:,}", "red") if cell.failed else "none",
    ]
