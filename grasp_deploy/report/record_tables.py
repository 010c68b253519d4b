"""Rich tables of any record: what it measured, what that means, and where it comes from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.throughput.verdict import QUANTITIES, SETTING
from grasp_deploy.bench.verdicts import verdicts
from grasp_deploy.stats.noise import NO_DIFFERENCE, UNDECIDED
from grasp_deploy.stats.wording import grouped

PROVENANCE = ("command", "created", "machine", "versions", "settings")
COMMON = ("schema_version", "benchmark", *PROVENANCE)
Row = dict[str, Any]
SHORT_OUTCOMES = {NO_DIFFERENCE: "within noise", UNDECIDED: "undecided"}


def record_tables(record: Mapping[str, Any]) -> list[Table]:
    """The tables of a record's figures; a kind that is not known is listed key by key."""
    maker = TABLES.get(record["benchmark"])
    return maker(dict(record)) if maker else [value_table(record)]


def provenance_table(record: Mapping[str, Any]) -> Table:
    """Command, machine, releases and settings of a record."""
    present = {key: record[key] for key in PROVENANCE if key in record}
    return _two_columns("Where it comes from", present)


def value_table(record: Mapping[str, Any]) -> Table:
    """All figures of a record by their keys; lists of numbers by their median."""
    figures = {key: value for key, value in record.items() if key not in COMMON}
    return _two_columns(f"Record of {record['benchmark']}", figures)


def gain_table(record: Row) -> Table:
    """Ratios to the first model, their intervals and the ideal, point by point."""
    title = "Speed against the first model"
    table = Table(title=title, title_justify="left")
    table.add_column("model and batch", overflow="fold")
    for head in ("ratio", "interval", "ideal", "of ideal"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    judged = verdicts(record)
    settings = grouped(judged, SETTING)
    for of_model in grouped(judged, ("model",)):
        for rows in grouped(of_model, (*SETTING, "quantity")):
            what = QUANTITIES[rows[0]["quantity"]]
            if len(settings) > 1:
                what += f" ({_setting(rows[0])})"
            table.add_row(Text(f"{rows[0]['model']}: {what}", style="bold"))
            for row in rows:
                table.add_row(f"batch {row['batch']:,}", *_gain_cells(row))
            table.add_section()
    return table


def _setting(row: Row) -> str:
    return f"{row['engine']}, {row['prompt_tokens']:,} + {row['new_tokens']:,} tokens"


def _gain_cells(row: Row) -> list[str]:
    interval, sure = row["interval"], row["outcome"] not in SHORT_OUTCOMES
    share = row["share_of_ideal"] if sure else None  # that of noise says nothing
    return [
        f"{row['ratio']:.2f}x",
        f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "",
        f"{row['ideal']:.2f}x" if row["ideal"] else "",
        f"{share:.0%}" if share is not None else "",
        str(SHORT_OUTCOMES.get(row["outcome"], row["outcome"])),
    ]


def quality_table(record: Row) -> Table:
    """Perplexity and weight bytes of each model and corpus."""
    weights = {m["name"]: m["footprint"]["weight_bytes"] for m in record["models"]}
    table = Table(title="Perplexity and size", title_justify="left")
    table.add_column("model", overflow="fold")
    table.add_column("corpus", overflow="fold")
    table.add_column("perplexity", justify="right")
    table.add_column("weights, MiB", justify="right")
    for cell in record["cells"]:
        size = f"{weights[cell['model']] / 2**20:,.1f}"
        perplexity = f"{cell['perplexity']:,.3f}"
        table.add_row(Text(cell["model"]), Text(cell["corpus"]), perplexity, size)
    return table


def _memory_tables(record: Row) -> list[Table]:
    from grasp_deploy.bench.tables import memory_table

    return [memory_table(record)]


def _kv_tables(record: Row) -> list[Table]:
    from grasp_deploy.bench.tables import kv_table

    return [kv_table(record)]


def _throughput_tables(record: Row) -> list[Table]:
    from grasp_deploy.bench.throughput.table import throughput_table

    return [throughput_table(record, judged_in="the next table"), gain_table(record)]


def _serve_tables(record: Row) -> list[Table]:
    from grasp_deploy.bench.throughput.table import serve_table

    return [serve_table(record)]


def _quality_tables(record: Row) -> list[Table]:
    return [quality_table(record)]


def _task_tables(record: Row) -> list[Table]:
    from grasp_deploy.evaluate.tasks.table import task_table

    return [task_table(record)]


def _startup_tables(record: Row) -> list[Table]:
    from grasp_deploy.report.startup_tables import startup_table

    return [startup_table(record)]


def _stability_tables(record: Row) -> list[Table]:
    from grasp_deploy.report.stability_tables import stability_table

    return [stability_table(record)]


def _study_tables(record: Row) -> list[Table]:
    from grasp_deploy.report.study_tables import budget_tables, kept_table, quality_tables
    from grasp_deploy.report.study_task_tables import accuracy_tables

    tables = [*quality_tables(record), *accuracy_tables(record)]
    return [*tables, kept_table(record), *budget_tables(record)]


TABLES: Mapping[str, Callable[[Row], list[Table]]] = {
    "throughput": _throughput_tables,
    "memory": _memory_tables,
    "kv": _kv_tables,
    "serve": _serve_tables,
    "quality": _quality_tables,
    "tasks": _task_tables,
    "startup": _startup_tables,
    "study": _study_tables,
    "mask-stability": _stability_tables,
}


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
    """A value in a cell: short lists as they are, long ones by their length and median."""
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
    if len(value) > 8 and all(isinstance(item, int | float) for item in value):
        return f"{len(value)} values, median {_plain(statistics.median(value))}"
    return ", ".join(_plain(item) for item in value)
