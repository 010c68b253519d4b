"""Load on live servers, as a table, sentences and figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.serve import Cell, LoadPoint, ServeRecord
from grasp_deploy.bench.show import line_drawing, number, paired_change, with_spread
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.noise import (
    TOO_FEW,
    UNDECIDED,
    Difference,
    differences,
    of_repetitions,
)
from grasp_deploy.stats.wording import common_outcome, counted, grouped, points_by_outcome, span

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "TPOT, ms", "E2E, ms", "failed")
LATENCIES = {
    "ttft": "Time to the first token",
    "tpot": "Time per output token",
    "e2e": "Time to the last token",
}


def serve_table(record: ServeRecord) -> Table:
    """Rates, latencies and failed requests of each model's server under each load."""
    settings = record.settings
    title = (
        f"Load on the live server: {settings.requests:,} requests of "
        f"{settings.prompt_tokens:,} + {settings.new_tokens:,} tokens"
    )
    slo = settings.slo_ms
    notes = [
        "tokens/s of output; Δ: change against the first model; latencies: median/99th percentile",
        *(["good/s: requests within the SLO"] if slo else []),
    ]
    table = figure_table(title, (*HEADS, "good/s") if slo else HEADS, notes, fold=False)
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
        "/".join(number(1000 * cell.latency(name, percentile)) for percentile in ("p50", "p99"))
        for name in ("ttft", "tpot", "e2e")
    )
    asked = cell.requests * len(cell.samples)
    return [
        with_spread(cell.rates),
        paired_change(cell.rates, dense.rates if dense else []),
        *latencies,
        Text(f"{cell.failed:,} of {asked:,}", "red") if cell.failed else "none",
    ]


def compared(record: ServeRecord) -> dict[tuple[str, LoadPoint], Difference]:
    """The difference of output tokens per second from the first model's, by model and load.

    Cells whose requests failed are left out: a server that drops some has less to do.
    """
    pairs = [
        (dense, cell)
        for cell in record.cells
        if (dense := record.dense_cell(cell)) and not dense.failed and not cell.failed
        if all(dense.rates + cell.rates)
    ]
    results = differences([(dense.rates, cell.rates) for dense, cell in pairs])
    return {(cell.model, cell.load): one for (_, cell), one in zip(pairs, results, strict=True)}


def headlines(record: ServeRecord) -> list[dict[str, Any]]:
    """One sentence for each model over all loads."""
    lines, results = [], compared(record)
    for cells in grouped(record.cells, lambda cell: cell.model):
        model, failed = cells[0].model, sum(cell.failed for cell in cells)
        found = {c.load: results[model, c.load] for c in cells if (model, c.load) in results}
        no_claim = f"{counted(failed, 'request') if failed else 'no request'} failed"
        outcomes = [found[c.load].outcome if c.load in found else no_claim for c in cells]
        asked = sum(cell.requests * len(cell.samples) for cell in cells)
        sentence = f"{failed:,} of {asked:,} requests failed"
        if found:
            sentence += f"; {_comparison(found, record.baseline, len(cells[0].samples))}"
        outcome = no_claim if failed else common_outcome(outcomes)
        lines.append(record.line(model, outcome, f"{sentence}."))
    return lines


def _comparison(found: Mapping[LoadPoint, Difference], baseline: str, repetitions: int) -> str:
    ratios = span([one.ratio for one in found.values()], ".2f", "x")
    points = points_by_outcome([(one.outcome, load.title) for load, one in found.items()])
    if any(one.outcome == UNDECIDED for one in found.values()):
        points = TOO_FEW.format(repetitions)
    loads = f"over {len(found)} loads"
    return f"{ratios} the output tokens per second of {baseline} {loads}: {points}"


def figures(record: ServeRecord) -> Iterator[Drawing]:
    """Output tokens per second, then each latency: its median and 99th percentile."""
    cells, first = record.cells, record.cells[0]
    failed = sum(cell.failed for cell in cells)
    repeated = of_repetitions("median", len(first.samples))
    note = f"{first.requests:,} requests at each load, {failed:,} failed; {repeated}"
    across = "requests per second" if first.load.request_rate else "requests at once"

    def drawn(name: str, title: str, unit: str, curves: dict[str, Any]) -> Drawing:
        heading, labels = (f"serve-{name}", f"{title}, by load", note), (across, unit)
        return line_drawing(record, heading, labels, cells, lambda cell: cell.load.size, curves)

    def milliseconds(name: str, percentile: str) -> Callable[[Cell], float]:
        return lambda cell: 1000 * cell.latency(name, percentile)

    rates = {"median": lambda cell: statistics.median(cell.rates)}
    yield drawn("throughput", "Output tokens per second", "tokens per second", rates)
    for name, title in LATENCIES.items():
        curves = {
            "half of the requests": milliseconds(name, "p50"),
            "99 % of them": milliseconds(name, "p99"),
        }
        yield drawn(name, title, "milliseconds", curves)
