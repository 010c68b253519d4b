"""Tables of benches: their columns, and cells with spreads, changes and latencies."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table


def new_table(title: str, heads: Iterable[str], caption: str | None = None) -> Table:
    """A table of figures; only the names of models, which may be long, fold."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for head in heads:
        if head.startswith("model"):
            table.add_column(head, overflow="fold")
        else:
            table.add_column(head, justify="right", no_wrap=True)
    return table


def with_spread(values: Sequence[float]) -> str:
    """The median, with half the range of the repetitions as a share of it."""
    median = statistics.median(values)
    if len(values) == 1 or not median:
        return number(median)
    return f"{number(median)} ±{(max(values) - min(values)) / 2 / median:.0%}"


def paired_change(values: Sequence[float], before: Sequence[float]) -> str:
    """The geometric mean of the paired ratios, as a change; empty without pairs."""
    if not values or len(values) != len(before) or not all([*values, *before]):
        return ""
    ratios = (after / first for after, first in zip(values, before, strict=True))
    mean = statistics.geometric_mean(ratios) - 1
    return f"{mean:+.1%}" if abs(mean) < 0.0995 else f"{mean:+.0%}"


def change(after: float, before: float) -> str:
    """A change in percent; empty where there was nothing before."""
    return f"{after / before - 1:+.1%}" if before else ""


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds."""
    return number(1000 * seconds)


def number(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def mebibytes(size_bytes: int) -> str:
    """A size in MiB."""
    return f"{size_bytes / 2**20:,.1f}"
