"""Rich tables of the benches that measure speed: batches in an engine, load on a live server."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.serve.verdict import load_name

Cell = Mapping[str, Any]


def throughput_table(record: Mapping[str, Any], judged_in: str = "report") -> Table:
    """Output tokens per second, TTFT, TPOT and energy of each model, one batch size at a time.

    `judged_in` is where a reader finds whether changes are more than noise.
    """
    cells = record["cells"]
    settings = list(dict.fromkeys(map(_setting, cells)))
    has_energy = any(s.get("joules") is not None for cell in cells for s in cell["samples"])
    table = Table(
        title="Throughput" + (f": {settings[0]}" if len(settings) == 1 else ""),
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
    for point in dict.fromkeys(map(_point, cells)):
        here = [cell for cell in cells if _point(cell) == point]
        first = _of_first_model(record, here)
        label = f"batch {here[0]['batch']:,}"
        if len(settings) > 1:
            label += f", {_setting(here[0])}"
        table.add_row(Text(label, style="bold"))
        for cell in here:
            row = _throughput_row(cell, None if cell is first else first, has_energy)
            table.add_row(Text(cell["model"]), *row)
        table.add_section()
    return table


def serve_table(record: Mapping[str, Any]) -> Table:
    """What each model's server gave under each load: rates, latencies, failed requests."""
    cells = record["cells"]
    has_goodput = any(
        sample["goodput_requests_per_second"] is not None
        for cell in cells
        for sample in cell["samples"]
    )
    table = Table(
        title=_serve_title(record),
        title_justify="left",
        caption="tokens/s of output; Δ: change against the first model; latencies: median/99th "
        "percentile" + ("; good/s: requests within the SLO" if has_goodput else ""),
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    heads = ["tokens/s", "Δ", "TTFT, ms", "TPOT, ms", "E2E, ms"]
    for head in [*heads, *(["good/s"] if has_goodput else []), "failed"]:
        table.add_column(head, justify="right", no_wrap=True)
    for load in dict.fromkeys(load_name(cell["load"]) for cell in cells):
        here = [cell for cell in cells if load_name(cell["load"]) == load]
        first = _of_first_model(record, here)
        table.add_row(Text(load, style="bold"))
        for cell in here:
            row = _serve_row(cell, None if cell is first else first, has_goodput)
            table.add_row(Text(cell["model"]), *row)
        table.add_section()
    return table


def _serve_title(record: Mapping[str, Any]) -> str:
    settings = record["settings"]
    if "prompt_tokens" not in settings:
        return "Load on the live server"
    return (
        f"Load on the live server: {settings['requests']:,} requests of "
        f"{settings['prompt_tokens']:,} + {settings['new_tokens']:,} tokens"
    )


def _throughput_row(cell: Cell, first: Cell | None, has_energy: bool) -> list[str]:
    if not cell["samples"]:
        return ["does not fit"]
    row = []
    for key in ("seconds", "ttft_seconds", "tpot_seconds"):
        values = _figures(cell, key)
        median = statistics.median(values) if values else math.nan
        row += [
            _with_spread(values) if key == "seconds" else _milliseconds(median),
            _change(values, _figures(first, key) if first else []),
        ]
    if has_energy:
        tokens = cell["batch"] * cell["new_tokens"]
        joules = [s["joules"] / tokens for s in cell["samples"] if s.get("joules") is not None]
        row.append(f"{statistics.median(joules):.3g}" if joules else "")
    return row


def _figures(cell: Cell, key: str) -> list[float]:
    """One figure of each repetition; seconds as output tokens per second."""
    values = [sample[key] for sample in cell["samples"] if sample[key]]
    if key != "seconds":
        return values
    return [cell["batch"] * cell["new_tokens"] / seconds for seconds in values]


def _serve_row(cell: Cell, first: Cell | None, has_goodput: bool) -> list[str]:
    if not cell["samples"]:
        return ["not measured"]
    rates, before = (
        [sample["output_tokens_per_second"] for sample in some["samples"]] if some else []
        for some in (cell, first)
    )
    row = [_with_spread(rates), _change(rates, before)]
    row += [_percentiles(cell, key) for key in ("ttft_seconds", "tpot_seconds", "e2e_seconds")]
    if has_goodput:
        good = [s["goodput_requests_per_second"] or 0.0 for s in cell["samples"]]
        row.append(f"{statistics.median(good):,.2f}")
    asked = cell["requests"] * len(cell["samples"])
    failed = sum(sample["failed"] for sample in cell["samples"])
    return [*row, f"[red]{failed:,} of {asked:,}[/]" if failed else "none"]


def _percentiles(cell: Cell, key: str) -> str:
    p50, p99 = (statistics.median(s[key][p] for s in cell["samples"]) for p in ("p50", "p99"))
    return f"{_milliseconds(p50)}/{_milliseconds(p99)}"


def _of_first_model(record: Mapping[str, Any], cells: Sequence[Cell]) -> Cell | None:
    first = record["models"][0]["name"]
    return next((cell for cell in cells if cell["model"] == first), None)


def _setting(cell: Cell) -> str:
    tokens = f"{cell['prompt_tokens']:,} prompt and {cell['new_tokens']:,} new tokens"
    return f"{cell['engine']}, {tokens}"


def _point(cell: Cell) -> tuple[str, int]:
    return _setting(cell), cell["batch"]


def _with_spread(values: Sequence[float]) -> str:
    median = statistics.median(values)
    if len(values) == 1 or not median:
        return _number(median)
    return f"{_number(median)} ±{(max(values) - min(values)) / 2 / median:.0%}"


def _change(values: Sequence[float], before: Sequence[float]) -> str:
    """The geometric mean of the paired ratios, as a change; nothing where there are no pairs."""
    if not values or len(values) != len(before) or not all([*values, *before]):
        return ""
    ratios = (now / then for now, then in zip(values, before, strict=True))
    change = statistics.geometric_mean(ratios) - 1
    return f"{change:+.1%}" if abs(change) < 0.0995 else f"{change:+.0%}"


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else _number(1000 * seconds)


def _number(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"
