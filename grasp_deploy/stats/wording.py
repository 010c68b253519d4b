"""How verdicts put figures into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def span(values: Sequence[float], form: str, unit: str = "") -> str:
    """The range of some figures: `1.10x to 1.42x`, or `1.10x` if they are written alike."""
    low, high = (f"{value:{form}}{unit}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def plus_minus(value: float, error: float | None, form: str, sign: str = "") -> str:
    """A figure with its standard error: `0.021 ± 0.003`; alone where that is unknown."""
    text = f"{value:{sign}{form}}"
    return text if error is None else f"{text} ± {error:{form}}"


def listed(values: Iterable[Any]) -> str:
    """Figures in a row: `1, 2 and 4`."""
    *most, last = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    return f"{', '.join(most)} and {last}" if most else last


def names_by_outcome(rows: Sequence[dict[str, Any]], key: str) -> str:
    """Which points had which outcome: `faster at all`, or `faster at 4 and 8, slower at 1`."""
    outcomes = list(dict.fromkeys(row["outcome"] for row in rows))
    if len(outcomes) == 1:
        return f"{outcomes[0]}{' at each' if len(rows) > 1 else ''}"
    points = {o: listed(row[key] for row in rows if row["outcome"] == o) for o in outcomes}
    return ", ".join(f"{outcome} at {names}" for outcome, names in points.items())


def mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 request`, `2,000 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def grouped(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The rows that agree in these keys, together, in the order of their first."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())
