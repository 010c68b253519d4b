"""Rich tables of any record, key by key, and of where a record comes from."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

PROVENANCE = ("command", "created", "machine", "versions", "settings")
COMMON = ("schema_version", "benchmark", *PROVENANCE)
LONGEST_LIST = 8  # items that a cell shows one by one


def provenance_table(record: Mapping[str, Any]) -> Table:
    """Command, machine, releases and settings of a record."""
    present = {key: record[key] for key in PROVENANCE if key in record}
    return _two_columns("Where it comes from", present)


def value_table(record: Mapping[str, Any]) -> Table:
    """All figures of a record by their keys; long lists of numbers by their median."""
    figures = {key: value for key, value in record.items() if key not in COMMON}
    return _two_columns(f"Record of {record['benchmark']}", figures)


def _two_columns(title: str, values: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("name", overflow="fold")
    table.add_column("value", overflow="fold")
    for name, value in _flat(values):
        table.add_row(Text(name), Text(value))
    return table


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}, ")
        elif value is not None:
            yield name, _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, list):
        return str(value)
    if any(isinstance(item, dict | list) for item in value):
        return f"{len(value)} entries"
    if len(value) > LONGEST_LIST and all(isinstance(item, int | float) for item in value):
        return f"{len(value)} values, median {_plain(statistics.median(value))}"
    return ", ".join(_plain(item) for item in value)
