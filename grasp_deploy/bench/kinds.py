"""The kinds of records that the product writes, and how a report draws each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from grasp_deploy.bench.kv.record import KvRecord
from grasp_deploy.bench.kv.table import kv_table
from grasp_deploy.bench.kv.verdict import kv_headlines, kv_verdicts
from grasp_deploy.bench.memory.record import MemoryRecord
from grasp_deploy.bench.memory.table import memory_table
from grasp_deploy.bench.memory.verdict import memory_headlines, memory_verdicts
from grasp_deploy.bench.serve.record import ServeRecord
from grasp_deploy.bench.serve.table import serve_table
from grasp_deploy.bench.serve.verdict import serve_headlines, serve_verdicts
from grasp_deploy.bench.throughput.record import ThroughputRecord
from grasp_deploy.bench.throughput.table import throughput_tables
from grasp_deploy.bench.throughput.verdict import throughput_headlines, throughput_verdicts
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.record import TasksRecord
from grasp_deploy.evaluate.tasks.table import task_table
from grasp_deploy.files.json_files import typed
from grasp_deploy.report.section import NamedRecord, Section, read_records

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Kind:
    """Reading and drawing of one benchmark's records; the functions take the typed record."""

    title: str
    record: type[Any]
    tables: Callable[[Any], list[Table]]
    verdicts: Callable[[Any], Sequence[Any]] = lambda record: ()
    headlines: Callable[[Any], list[dict[str, Any]]] = lambda record: []
    plot: str | None = None  # module with `figures`; imported late, because it needs matplotlib


KINDS = {
    "throughput": Kind(
        title="Throughput and latency",
        record=ThroughputRecord,
        tables=throughput_tables,
        verdicts=throughput_verdicts,
        headlines=throughput_headlines,
        plot="grasp_deploy.bench.throughput.plot",
    ),
    "memory": Kind(
        title="Prefill memory",
        record=MemoryRecord,
        tables=lambda record: [memory_table(record)],
        verdicts=memory_verdicts,
        headlines=memory_headlines,
        plot="grasp_deploy.bench.memory.plot",
    ),
    "kv": Kind(
        title="KV cache",
        record=KvRecord,
        tables=lambda record: [kv_table(record)],
        verdicts=kv_verdicts,
        headlines=kv_headlines,
        plot="grasp_deploy.bench.kv.plot",
    ),
    "serve": Kind(
        title="Load on the live server",
        record=ServeRecord,
        tables=lambda record: [serve_table(record)],
        verdicts=serve_verdicts,
        headlines=serve_headlines,
        plot="grasp_deploy.bench.serve.plot",
    ),
    "tasks": Kind(
        title="Accuracy on tasks",
        record=TasksRecord,
        tables=lambda record: [task_table(to_builtins(record))],
    ),
}


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """Read and check records; InputError for a file that is not a whole record of a bench."""
    return [section_of(named) for named in read_records(paths)]


def section_of(named: NamedRecord) -> Section:
    """The section of a record; InputError for a record of a study."""
    document = named.record
    kind = KINDS.get(document["benchmark"])
    if kind is None:
        raise InputError(
            f"{named.path} is a record of {document['benchmark']}, which is a study: draw it with "
            "`python -m benchmarks.report`"
        )
    record = typed_record(document, named.path)
    return Section(
        name=named.name,
        title=kind.title,
        record=document,
        tables=lambda: kind.tables(record),
        headlines=kind.headlines(record),
        verdicts=to_builtins(kind.verdicts(record)),
        figures=lambda: list(import_module(kind.plot).figures(record)) if kind.plot else [],
        models=document["models"],
    )


def typed_record(document: dict[str, Any], path: Path) -> Any:
    """The typed record of a JSON document, whose `benchmark` is one of KINDS.

    Raises InputError for a key that is missing or of another type, and for cells at odds with each
    other or with the models.
    """
    remedy = "run its command again, or name another record"
    return typed(document, KINDS[document["benchmark"]].record, path, remedy)
