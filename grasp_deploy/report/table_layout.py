"""Tables that stay as wide as a terminal: where one would be wider, its columns take turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

WIDEST_COLUMNS = 80
ANY_WIDTH = Console(width=1000)
Column = TypeVar("Column")


def fits(table: Table) -> bool:
    """Whether a terminal of 80 columns shows it without folding anything."""
    return ANY_WIDTH.measure(table).maximum <= WIDEST_COLUMNS


def fitting(
    make: Callable[[Sequence[Column]], Table], columns: Sequence[Column]
) -> list[list[Column]]:
    """The columns in as few groups as fit, about as many in each; alone where none fits."""
    for size in range(len(columns), 1, -1):
        count = -(-len(columns) // size)
        even = -(-len(columns) // count)
        groups = [list(columns[start : start + even]) for start in range(0, len(columns), even)]
        if all(fits(make(group)) for group in groups):
            return groups
    return [[column] for column in columns]


def broken_name(name: str, letters: int) -> str:
    """A name in lines of so many letters, as far as its underscores and hyphens allow."""
    lines = [""]
    for part in re.findall(r"[^_-]*[_-]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > letters:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
