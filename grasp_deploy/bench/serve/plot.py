"""Latency percentiles and throughput of the live server against its load."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

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
    "ttft": "Time to the first token",
    "tpot": "Time per output token",
    "itl": "Time between two tokens",
    "e2e": "Time to the last token",
}
Row = dict[str, Any]


def serve_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """Output tokens per second, then each latency: its median and 99th percentile."""
    yield _drawing(record, "serve-throughput", "Output tokens per second", None)
    for name, title in LATENCIES.items():
        if any(_value(cell, f"{name}_seconds", "p50") for cell in record["cells"]):
            yield _drawing(record, f"serve-{name}", title, f"{name}_seconds")


def _drawing(record: dict[str, Any], name: str, title: str, latency: str | None) -> Drawing:
    title = f"{title}, by load"
    loads = list(dict.fromkeys(_key(cell) for cell in record["cells"]))
    loads.sort(key=lambda load: tuple(value if value is not None else 1e12 for value in load))
    axes = new_axes(title, _note(record["cells"], latency))
    handles: list[Line2D] = []
    for index, model in enumerate(record["models"]):
        cells = [cell for cell in record["cells"] if cell["model"] == model["name"]]
        _curves(axes, index, cells, loads, latency)
        handles.append(line_handle(index, model["name"]))
    if latency:
        handles.append(key_handle("half of the requests"))
        handles.append(key_handle("99 % of them", DASHED))
    axes.set_xticks(range(len(loads)), labels=[_tick(load) for load in loads])
    axes.margins(x=0.08)
    axes.set_xlabel(_axis_label(loads))
    axes.set_ylabel("milliseconds" if latency else "tokens per second")
    count_from_zero(axes)
    return finished(name, title, axes, handles)


def _curves(
    axes: Axes, index: int, cells: Sequence[Row], loads: Sequence[Any], latency: str | None
) -> None:
    solid: tuple[str, Dashes] = ("p50", "-")
    for percentile, dashes in (solid, ("p99", DASHED)) if latency else (solid,):
        points = [
            (loads.index(_key(cell)), value)
            for cell in cells
            if (value := _value(cell, latency, percentile)) is not None
        ]
        if points:
            places, values = zip(*sorted(points), strict=True)
            (line,) = axes.plot(places, values, color=color_of(index), linestyle=dashes)
            line.set_marker(MARKERS[index % len(MARKERS)])


def _value(cell: Row, latency: str | None, percentile: str) -> float | None:
    """Median over the repetitions, in tokens per second or in milliseconds; None if unknown."""
    if latency is None:
        values = [sample["output_tokens_per_second"] for sample in cell["samples"]]
        return statistics.median(values) if values else None
    seconds = [(sample.get(latency) or {}).get(percentile) for sample in cell["samples"]]
    known = [1000 * value for value in seconds if value is not None]
    return statistics.median(known) if known else None


def _note(cells: Sequence[Row], latency: str | None) -> str:
    requests = max(cell["requests"] for cell in cells)
    failed = sum(sample["failed"] for cell in cells for sample in cell["samples"])
    repetitions = max(len(cell["samples"]) for cell in cells)
    runs = f"median of {repetitions} repetitions" if repetitions > 1 else "one run"
    lost = f"{failed:,} failed in all" if failed else "none failed"
    return f"{requests:,} requests at each load, {lost}; {runs}"


def _key(cell: Row) -> tuple[float | None, float | None]:
    return cell["load"]["max_concurrency"], cell["load"]["request_rate"]


def _tick(load: tuple[float | None, float | None]) -> str:
    at_once, rate = load
    if rate is None:
        return "all" if at_once is None else f"{at_once:,}"
    return f"{rate:g}/s" if at_once is None else f"{rate:g}/s,\n{at_once:,} at once"


def _axis_label(loads: Sequence[tuple[float | None, float | None]]) -> str:
    if all(rate is None for _, rate in loads):
        return "requests at once"
    return "load, requests per second" if all(rate for _, rate in loads) else "load, requests"
