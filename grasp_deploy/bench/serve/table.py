"""The rich table of a serve record."""

from __future__ import annotations

import statistics

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.serve.record import Cell, ServeRecord
from grasp_deploy.bench.table_cells import milliseconds, paired_change, with_spread
from grasp_deploy.stats.wording import grouped


def serve_table(record: ServeRecord) -> Table:
    """Rates, latencies and failed requests of each model's server under each load."""
    has_goodput = any(
        sample.goodput_requests_per_second is not None
        for cell in record.cells
        for sample in cell.samples
    )
    settings = record.settings
    table = Table(
        title=f"Load on the live server: {settings.requests:,} requests of "
        f"{settings.prompt_tokens:,} + {settings.new_tokens:,} tokens",
        title_justify="left",
        caption="tokens/s of output; Δ: change against the first model; latencies: median/99th "
        "percentile" + ("; good/s: requests within the SLO" if has_goodput else ""),
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    heads = ["tokens/s", "Δ", "TTFT, ms", "TPOT, ms", "E2E, ms"]
    for head in [*heads, *(["good/s"] if has_goodput else []), "failed"]:
        table.add_column(head, justify="right", no_wrap=True)
    for cells in grouped(record.cells, lambda cell: cell.load):
        table.add_row(Text(cells[0].load.title, style="bold"))
        for cell in cells:
            good = [_goodput(cell)] if has_goodput else []
            figures = _figures(cell, record.dense_cell(cell))
            failed = f"[red]{cell.failed:,} of {cell.asked:,}[/]" if cell.failed else "none"
            table.add_row(Text(cell.model), *figures, *good, failed)
        table.add_section()
    return table


def _figures(cell: Cell, dense: Cell | None) -> list[str]:
    latencies = (_percentiles(cell, name) for name in ("ttft", "tpot", "e2e"))
    return [
        with_spread(cell.rates),
        paired_change(cell.rates, dense.rates if dense else []),
        *latencies,
    ]


def _percentiles(cell: Cell, name: str) -> str:
    """Median and 99th percentile of a latency, each the median over the samples."""
    samples = [getattr(sample, f"{name}_seconds") for sample in cell.samples]
    p50, p99 = (statistics.median(getattr(s, p) for s in samples) for p in ("p50", "p99"))
    return f"{milliseconds(p50)}/{milliseconds(p99)}"


def _goodput(cell: Cell) -> str:
    return f"{statistics.median(s.goodput_requests_per_second or 0.0 for s in cell.samples):,.2f}"
