"""Load on live servers, as a table, sentences and figures."""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.serve import Cell, ServeRecord
from grasp_deploy.bench.show import (
    cell_table,
    gain_in_words,
    gains,
    line_drawing,
    number,
    rate_cells,
)
from grasp_deploy.report.section import Drawing
from grasp_deploy.stats.noise import of_repetitions
from grasp_deploy.stats.wording import common_outcome, counted, grouped

HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "TPOT, ms", "E2E, ms", "failed")
LATENCIES = {
    "ttft": "Time to the first token",
    "tpot": "Time per output token",
    "e2e": "Time to the last token",
}
NOTE = "tokens/s of output; Δ: change against the first model; latencies: median/99th percentile"


def tables(record: ServeRecord) -> list[Table]:
    """Rates, latencies and failed requests of each model's server under each load."""
    settings = record.settings
    title = (
        f"Load on the live server: {settings.requests:,} requests of "
        f"{settings.prompt_tokens:,} + {settings.new_tokens:,} tokens"
    )
    heads, notes = [*HEADS], [NOTE]
    if settings.slo_ms:
        heads.append("good/s")
        notes.append("good/s: requests within the SLO")

    def figures(cell: Cell, dense: Cell | None) -> list[str | Text]:
        row = rate_cells(cell, dense)
        for name in LATENCIES:
            pair = (cell.latency(name, percentile) for percentile in ("p50", "p99"))
            row.append("/".join(number(1000 * seconds) for seconds in pair))
        row.append(Text(f"{cell.failed:,} of {cell.asked:,}", "red") if cell.failed else "none")
        if settings.slo_ms:
            good = [sample.goodput_requests_per_second or 0.0 for sample in cell.samples]
            row.append(f"{statistics.median(good):,.2f}")
        return row

    return [cell_table(record, title, heads, notes, lambda cell: cell.load.title, figures)]


def headlines(record: ServeRecord) -> Iterator[dict[str, Any]]:
    """One sentence for each model over all loads.

    A load is not compared where requests failed: a server that drops some has less to do.
    """
    compared = gains(record, lambda cell: not cell.failed and all(cell.rates))
    for cells in grouped(record.cells, lambda cell: cell.model):
        model, failed = cells[0].model, sum(cell.failed for cell in cells)
        found = {cell.load.title: one for _, cell, one in compared if cell.model == model}
        no_claim = f"{counted(failed, 'request') if failed else 'no request'} failed"
        outcomes = [one.outcome for one in found.values()]
        outcomes += [no_claim] * (len(found) < len(cells))
        sentence = f"{failed:,} of {sum(cell.asked for cell in cells):,} requests failed"
        if found:
            loads = counted(len(found), "load")
            what = f"the output tokens per second of {record.baseline} over {loads}"
            sentence += f"; {gain_in_words(found, what, len(cells[0].samples))}"
        outcome = no_claim if failed else common_outcome(outcomes)
        yield record.line(model, outcome, f"{sentence}.")


def figures(record: ServeRecord) -> Iterator[Drawing]:
    """Output tokens per second, then each latency: its median and 99th percentile."""
    cells, first = record.cells, record.cells[0]
    failed = sum(cell.failed for cell in cells)
    repeated = of_repetitions(len(first.samples))
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
