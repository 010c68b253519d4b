"""The kinds of records that the product writes, and how a report draws each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from grasp_deploy.bench import kv_show, memory_show, serve_show, throughput_show
from grasp_deploy.bench.frontier import speed_drawing, untimed_line
from grasp_deploy.bench.kv import KvRecord
from grasp_deploy.bench.memory import MemoryRecord
from grasp_deploy.bench.serve import ServeRecord
from grasp_deploy.bench.throughput import ThroughputRecord
from grasp_deploy.compression.family.record import FamilyRecord
from grasp_deploy.compression.family.table import family_table
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.compare import CompareRecord
from grasp_deploy.evaluate.table import compare_table
from grasp_deploy.evaluate.tasks.accuracy import TasksRecord
from grasp_deploy.evaluate.tasks.table import task_table
from grasp_deploy.files.json_files import typed
from grasp_deploy.report.losses import verdict as losses
from grasp_deploy.report.section import Line, NamedRecord, Section, read_records

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_deploy.report.figure_style import Drawing

Rows = Callable[[Any], list[Line]]


@dataclass(frozen=True)
class Kind:
    """Reading and drawing of one benchmark's records; the functions take the typed record."""

    title: str
    record: type[Any]
    tables: Sequence[Callable[[Any], Table]]
    headlines: Rows = lambda _: []
    verdicts: Rows = lambda _: []  # more figures, point by point, for `--json`
    plot: str = ""  # a module with `figures`, imported late, because they need matplotlib


LOSSES = (losses.headlines, losses.verdicts, "grasp_deploy.report.losses.plot")
KINDS = {
    "throughput": Kind(
        "Throughput and latency",
        ThroughputRecord,
        (throughput_show.throughput_table, throughput_show.gain_table),
        throughput_show.headlines,
        throughput_show.verdicts,
        throughput_show.__name__,
    ),
    "memory": Kind(
        "Prefill memory",
        MemoryRecord,
        (memory_show.memory_table,),
        memory_show.headlines,
        plot=memory_show.__name__,
    ),
    "kv": Kind("KV cache", KvRecord, (kv_show.kv_table,), kv_show.headlines, plot=kv_show.__name__),
    "serve": Kind(
        "Load on the live server",
        ServeRecord,
        (serve_show.serve_table,),
        serve_show.headlines,
        plot=serve_show.__name__,
    ),
    "tasks": Kind("Accuracy on tasks", TasksRecord, (lambda r: task_table(to_builtins(r)),)),
    "family": Kind("Family of budgets", FamilyRecord, (family_table,), *LOSSES),
    "compare": Kind("Losses compared", CompareRecord, (compare_table,), *LOSSES),
}
KINDS["perplexity"] = KINDS["compare"]  # what `evaluate perplexity` wrote


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """Read and check records; InputError for a file that is not a whole record of a bench."""
    records = read_records(paths)
    speeds = [n for n in records if n.record["benchmark"] == "throughput"]
    return [section_of(named, speeds) for named in records]


def section_of(named: NamedRecord, speeds: Sequence[NamedRecord] = ()) -> Section:
    """The section of a record; InputError for a record of a study.

    Losses are drawn against the `speeds` that records of `bench throughput` have, too.
    """
    document, benchmark = named.record, named.record["benchmark"]
    if benchmark not in KINDS:
        raise InputError(
            f"{named.path} is a record of {benchmark}, which is a study: draw it with "
            "`python -m benchmarks.report`"
        )
    kind, record = KINDS[benchmark], typed_record(document, named.path)
    headlines, timings = kind.headlines(record), []
    for timed in speeds if kind.headlines is losses.headlines else ():
        timings.append(typed_record(timed.record, timed.path))
        headlines += untimed_line(record, timings[-1], timed.name)

    def figures() -> list[Drawing]:
        drawings = list(import_module(kind.plot).figures(record)) if kind.plot else []
        by_speed = (speed_drawing(record, timing) for timing in timings)
        for number, drawing in enumerate(filter(None, by_speed)):
            name = f"{drawing.name}-{number + 1}" if number else drawing.name
            drawings.append(replace(drawing, name=name))
        return drawings

    return Section(
        name=named.name,
        title=kind.title,
        record=document,
        tables=lambda: [t for draw in kind.tables if (t := draw(record)).row_count],
        headlines=headlines,
        verdicts=to_builtins(kind.verdicts(record)),
        figures=figures,
        models=document["models"],
    )


def typed_record(document: dict[str, Any], path: Path) -> Any:
    """The typed record of a JSON document, whose `benchmark` is one of KINDS.

    Raises InputError for a key that is missing or of another type, and for cells at odds with each
    other or with the models.
    """
    remedy = "run its command again, or name another record"
    return typed(document, KINDS[document["benchmark"]].record, path, remedy)
