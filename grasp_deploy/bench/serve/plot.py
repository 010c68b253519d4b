"""Latency percentiles and throughput of the live server against its load."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes

from grasp_deploy.bench.serve.record import Cell, LoadPoint, ServeRecord
from grasp_deploy.report.figure_style import (
    DASHED,
    MARKERS,
    Dashes,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    key_handle,
    line_handle,
    new_axes,
)
from grasp_deploy.stats.noise import of_repetitions

LATENCIES = {
    "ttft": "Time to the first token, by load",
    "tpot": "Time per output token, by load",
    "itl": "Time between two tokens, by load",
    "e2e": "Time to the last token, by load",
}
Curves = dict[Dashes, Callable[[Cell], float]]


def figures(record: ServeRecord) -> Iterator[Drawing]:
    """Output tokens per second, then each latency: its median and 99th percentile."""
    rates: Curves = {"-": lambda cell: statistics.median(cell.rates)}
    title = "Output tokens per second, by load"
    yield _drawing(record, "throughput", title, "tokens per second", rates)
    for name, title in LATENCIES.items():
        median, tail = (partial(_milliseconds, name=name, percentile=p) for p in ("p50", "p99"))
        yield _drawing(record, name, title, "milliseconds", {"-": median, DASHED: tail})


def _drawing(record: ServeRecord, name: str, title: str, unit: str, curves: Curves) -> Drawing:
    loads = sorted({cell.load for cell in record.cells}, key=lambda load: load.size)
    axes = _load_axes(record, loads, title)
    for index, model in enumerate(record.models):
        cells = {cell.load: cell for cell in record.cells if cell.model == model.name}
        places = [place for place, load in enumerate(loads) if load in cells]
        for dashes, value in curves.items():
            values = [value(cells[loads[place]]) for place in places]
            marker = MARKERS[index % len(MARKERS)]
            axes.plot(places, values, linestyle=dashes, color=color_of(index), marker=marker)
    axes.set_ylabel(unit)
    count_from_zero(axes)
    handles = [line_handle(index, model.name) for index, model in enumerate(record.models)]
    if DASHED in curves:
        handles += [key_handle("half of the requests"), key_handle("99 % of them", DASHED)]
    return finished(f"serve-{name}", title, axes, handles)


def _load_axes(record: ServeRecord, loads: Sequence[LoadPoint], title: str) -> Axes:
    cells = record.cells
    failed = sum(cell.failed for cell in cells)
    note = f"{cells[0].requests:,} requests at each load, {failed:,} failed; " + of_repetitions(
        "median", len(cells[0].samples)
    )
    axes = new_axes(title, note)
    axes.set_xticks(range(len(loads)), labels=[f"{load.size:,g}" for load in loads])
    axes.margins(x=0.08)
    axes.set_xlabel("requests per second" if loads[0].request_rate else "requests at once")
    return axes


def _milliseconds(cell: Cell, name: str, percentile: str) -> float:
    return 1000 * cell.latency(name, percentile)
