"""The kinds of records that the product writes, and how a report draws each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import to_builtins

from grasp_deploy.bench import kv_show, memory_show, serve_show, throughput_show
from grasp_deploy.bench.kv import KvRecord
from grasp_deploy.bench.memory import MemoryRecord
from grasp_deploy.bench.serve import ServeRecord
from grasp_deploy.bench.throughput import ThroughputRecord
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate import table as compare_show
from grasp_deploy.evaluate.compare import CompareRecord
from grasp_deploy.evaluate.tasks.accuracy import TasksRecord
from grasp_deploy.evaluate.tasks.table import task_figures, task_table
from grasp_deploy.files.json_files import typed
from grasp_deploy.report.section import REMEDY, Line, Section, read_records

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_deploy.report.figure_style import Drawing


class Kind(NamedTuple):
    """Reading and drawing of one benchmark's records; the functions take the typed record."""

    title: str
    record: type[Any]
    tables: Callable[[Any], list[Table]]
    headlines: Callable[[Any], list[Line]] = lambda _: []
    figures: Callable[[Any], Iterable[Drawing]] = lambda _: []


KINDS = {
    name: Kind(title, record, show.tables, show.headlines, show.figures)
    for name, title, record, show in (
        ("throughput", "Throughput and latency", ThroughputRecord, throughput_show),
        ("memory", "Prefill memory", MemoryRecord, memory_show),
        ("kv", "KV cache", KvRecord, kv_show),
        ("serve", "Load on the live server", ServeRecord, serve_show),
        ("compare", "Losses compared", CompareRecord, compare_show),
    )
}
KINDS["tasks"] = Kind(
    "Accuracy on tasks",
    TasksRecord,
    lambda r: [task_table(to_builtins(r))],
    figures=task_figures,
)
KINDS["perplexity"] = KINDS["compare"]  # what `evaluate perplexity` wrote


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """Read and check records; InputError for a file that is not a whole record of a bench."""
    return [section_of(*named) for named in read_records(paths)]


def section_of(name: str, document: dict[str, Any], path: Path = Path("record.json")) -> Section:
    """The section of a record.

    Raises InputError for a record of a study, for a key that is missing or of another type, and for
    cells at odds with each other or with the models.
    """
    if (benchmark := document["benchmark"]) not in KINDS:
        raise InputError(
            f"{path} is a record of {benchmark}, of this project's own studies: draw it with "
            "`python -m benchmarks.report`"
        )
    kind = KINDS[benchmark]
    record = typed(document, kind.record, path, REMEDY)
    return Section(
        name=name,
        title=kind.title,
        record=document,
        tables=kind.tables(record),
        headlines=kind.headlines(record),
        figures=lambda: list(kind.figures(record)),
        models=document["models"],
    )
