"""The kinds of records that the product writes, and how a report draws each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from grasp_deploy.bench import kv_show, memory_show, serve_show, throughput_show
from grasp_deploy.bench.kv import KvRecord
from grasp_deploy.bench.memory import MemoryRecord
from grasp_deploy.bench.serve import ServeRecord
from grasp_deploy.bench.throughput import ThroughputRecord
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.compare import CompareRecord
from grasp_deploy.evaluate.table import compare_table
from grasp_deploy.evaluate.tasks.accuracy import TasksRecord
from grasp_deploy.evaluate.tasks.table import task_table
from grasp_deploy.files.json_files import typed
from grasp_deploy.report import losses
from grasp_deploy.report.section import Line, NamedRecord, Section, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from grasp_deploy.report.figure_style import Drawing


@dataclass(frozen=True)
class Kind:
    """Reading and drawing of one benchmark's records; the functions take the typed record."""

    title: str
    record: type[Any]
    tables: Sequence[Callable[[Any], Table]]
    headlines: Callable[[Any], list[Line]] = lambda _: []
    figures: Callable[[Any], Iterable[Drawing]] = lambda _: []


KINDS = {
    "throughput": Kind(
        "Throughput and latency",
        ThroughputRecord,
        (throughput_show.throughput_table, throughput_show.gain_table),
        throughput_show.headlines,
        throughput_show.figures,
    ),
    "memory": Kind(
        "Prefill memory",
        MemoryRecord,
        (memory_show.memory_table,),
        memory_show.headlines,
        memory_show.figures,
    ),
    "kv": Kind("KV cache", KvRecord, (kv_show.kv_table,), kv_show.headlines, kv_show.figures),
    "serve": Kind(
        "Load on the live server",
        ServeRecord,
        (serve_show.serve_table,),
        serve_show.headlines,
        serve_show.figures,
    ),
    "tasks": Kind("Accuracy on tasks", TasksRecord, (lambda r: task_table(to_builtins(r)),)),
    "compare": Kind(
        "Losses compared", CompareRecord, (compare_table,), losses.headlines, losses.figures
    ),
}
KINDS["perplexity"] = KINDS["compare"]  # what `evaluate perplexity` wrote


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """Read and check records; InputError for a file that is not a whole record of a bench."""
    return [section_of(named) for named in read_records(paths)]


def section_of(named: NamedRecord) -> Section:
    """The section of a record; InputError for a record of a study."""
    document, benchmark = named.record, named.record["benchmark"]
    if benchmark not in KINDS:
        raise InputError(
            f"{named.path} is a record of {benchmark}, which is a study: draw it with "
            "`python -m benchmarks.report`"
        )
    kind, record = KINDS[benchmark], typed_record(document, named.path)
    return Section(
        name=named.name,
        title=kind.title,
        record=document,
        tables=lambda: [t for draw in kind.tables if (t := draw(record)).row_count],
        headlines=kind.headlines(record),
        figures=lambda: list(kind.figures(record)),
        models=document["models"],
    )


def typed_record(document: dict[str, Any], path: Path) -> Any:
    """The typed record of a JSON document, whose `benchmark` is one of KINDS.

    Raises InputError for a key that is missing or of another type, and for cells at odds with each
    other or with the models.
    """
    remedy = "run its command again, or name another record"
    return typed(document, KINDS[document["benchmark"]].record, path, remedy)
