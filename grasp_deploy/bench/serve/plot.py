"""Latency percentiles and throughput of the live server against its load."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

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

LATENCIES = {
    "ttft": "Time to the first token, by load",
    "tpot": "Time per output token, by load",
    "itl": "Time between two tokens, by load",
    "e2e": "Time to the last token, by load",
}
PERCENTILES: dict[str, Dashes] = {"p50": "-", "p99": DASHED}


def figures(record: ServeRecord) -> Iterator[Drawing]:
    """Output tokens per second, then each latency: its median and 99th percentile."""
    yield _throughput_drawing(record)
    for name, title in LATENCIES.items():
        yield _latency_drawing(record, name, title)


def _throughput_drawing(record: ServeRecord) -> Drawing:
    title = "Output tokens per second, by load"
    loads = _loads(record)
    axes = _load_axes(record, loads, title)
    for index, cells in enumerate(_cells_by_model(record)):
        points = [(loads.index(cell.load), statistics.median(cell.rates)) for cell in cells]
        _line(axes, index, points, "-")
    axes.set_ylabel("tokens per second")
    count_from_zero(axes)
    models = [line_handle(index, model.name) for index, model in enumerate(record.models)]
    return finished("serve-throughput", title, axes, models)


def _latency_drawing(record: ServeRecord, name: str, title: str) -> Drawing:
    loads = _loads(record)
    axes = _load_axes(record, loads, title)
    for index, cells in enumerate(_cells_by_model(record)):
        for percentile, dashes in PERCENTILES.items():
            points = [(loads.index(c.load), _milliseconds(c, name, percentile)) for c in cells]
            _line(axes, index, points, dashes)
    axes.set_ylabel("milliseconds")
    count_from_zero(axes)
    handles = [line_handle(index, model.name) for index, model in enumerate(record.models)]
    handles += [key_handle("half of the requests"), key_handle("99 % of them", DASHED)]
    return finished(f"serve-{name}", title, axes, handles)


def _loads(record: ServeRecord) -> list[LoadPoint]:
    return sorted({cell.load for cell in record.cells}, key=lambda load: load.size)


def _cells_by_model(record: ServeRecord) -> list[list[Cell]]:
    return [[cell for cell in record.cells if cell.model == m.name] for m in record.models]


def _load_axes(record: ServeRecord, loads: Sequence[LoadPoint], title: str) -> Axes:
    cells = record.cells
    failed = sum(cell.failed for cell in cells)
    repetitions = max(len(cell.samples) for cell in cells)
    runs = f"median of {repetitions} repetitions" if repetitions > 1 else "one run"
    lost = f"{failed:,} failed in all" if failed else "none failed"
    requests = max(cell.requests for cell in cells)
    axes = new_axes(title, f"{requests:,} requests at each load, {lost}; {runs}")
    axes.set_xticks(range(len(loads)), labels=[f"{load.size:,g}" for load in loads])
    axes.margins(x=0.08)
    axes.set_xlabel("requests per second" if loads[0].request_rate else "requests at once")
    return axes


def _line(axes: Axes, index: int, points: Sequence[tuple[int, float]], dashes: Dashes) -> None:
    places, values = zip(*sorted(points), strict=True)
    (line,) = axes.plot(places, values, color=color_of(index), linestyle=dashes)
    line.set_marker(MARKERS[index % len(MARKERS)])


def _milliseconds(cell: Cell, name: str, percentile: str) -> float:
    """Median over the repetitions."""
    latencies = (getattr(sample, f"{name}_seconds") for sample in cell.samples)
    return 1000 * statistics.median(getattr(seconds, percentile) for seconds in latencies)
