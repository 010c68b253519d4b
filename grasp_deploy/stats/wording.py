"""Figures of verdicts in words."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def span(values: Sequence[float], form: str, unit: str = "") -> str:
    """The range of some figures: `1.10x to 1.42x`, or `1.10x` if they are written alike."""
    low, high = (f"{value:{form}}{unit}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def plus_minus(value: float, error: float | None, form: str, sign: str = "") -> str:
    """A figure with its standard error: `0.021 ± 0.003`; alone where that is unknown."""
    text = f"{value:{sign}z{form}}"  # z: what rounds to zero has no minus
    return text if error is None else f"{text} ± {error:{form}}"


def percent(share: float, error: float | None, sign: str = "") -> str:
    """A share in percent with its standard error: `41.2 ± 1.4`."""
    return plus_minus(100 * share, None if error is None else 100 * error, ".1f", sign)


def amount(value: float) -> str:
    """A figure of any size: `1,234,567`, and of a small one six digits: `0.600125`."""
    return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"


def listed(values: Iterable[Any]) -> str:
    """Figures in a row: `1, 2 and 4`."""
    *most, last = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    return f"{', '.join(most)} and {last}" if most else last


def quoted(text: str) -> str:
    """A stranger's text as code of one line, in which nothing is Markdown or HTML."""
    return f"`{' '.join(text.split()).replace('`', chr(39)) or ' '}`"


def points_by_outcome(outcomes: Sequence[tuple[str, Any]]) -> str:
    """(outcome, point) pairs in words: `faster at each`, or `faster at 4 and 8, slower at 1`."""
    names = list(dict.fromkeys(outcome for outcome, _ in outcomes))
    if len(names) == 1:
        return f"{names[0]}{' at each' if len(outcomes) > 1 else ''}"
    points = {
        name: listed(point for outcome, point in outcomes if outcome == name) for name in names
    }
    return ", ".join(f"{name} at {where}" for name, where in points.items())


def common_outcome(outcomes: Iterable[str]) -> str:
    """The outcome that all points share, or `mixed`."""
    names = set(outcomes)
    return names.pop() if len(names) == 1 else "mixed"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 request`, `2,000 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def grouped(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The rows with equal keys together, in the order of their first."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())
