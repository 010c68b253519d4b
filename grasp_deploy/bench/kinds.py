"""Sections of the records of benches: for each kind its tables, verdicts and figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table

from grasp_deploy.bench.gain_table import gain_table
from grasp_deploy.bench.tables import kv_table, memory_table
from grasp_deploy.bench.throughput.table import serve_table, throughput_table
from grasp_deploy.bench.verdicts import headlines, verdicts
from grasp_deploy.evaluate.tasks.table import task_table
from grasp_deploy.report.records import NamedRecord
from grasp_deploy.report.section import Section
from grasp_deploy.report.value_tables import value_table

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

DRAWN = ("throughput", "memory", "kv", "serve")


def section_of(named: NamedRecord) -> Section:
    """The section of a record; the figures of an unknown kind are listed key by key."""
    record = named.record
    return Section(
        name=named.name,
        title=named.title,
        record=record,
        tables=lambda: _tables(record),
        headlines=headlines(record),
        verdicts=verdicts(record),
        figures=lambda: list(_figures(record)),
        models=record["models"] if record["benchmark"] in DRAWN else (),
    )


def _tables(record: dict[str, Any]) -> list[Table]:
    match record["benchmark"]:
        case "throughput":
            return [throughput_table(record, judged_in="the next table"), gain_table(record)]
        case "memory":
            return [memory_table(record)]
        case "kv":
            return [kv_table(record)]
        case "serve":
            return [serve_table(record)]
        case "tasks":
            return [task_table(record)]
    return [value_table(record)]


def _figures(record: dict[str, Any]) -> Iterator[Drawing]:
    from grasp_deploy.bench.memory.plot import kv_drawings, memory_drawings
    from grasp_deploy.bench.serve.plot import serve_drawings
    from grasp_deploy.bench.throughput.plot import throughput_drawings

    match record["benchmark"]:
        case "throughput":
            yield from throughput_drawings(record)
        case "memory":
            yield from memory_drawings(record)
        case "kv":
            yield from kv_drawings(record)
        case "serve":
            yield from serve_drawings(record)
