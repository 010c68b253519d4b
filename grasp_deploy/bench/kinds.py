"""The kinds of records that the product writes, and how a report draws each."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from grasp_deploy.bench import kv_show, memory_show, serve_show, throughput_show
from grasp_deploy.bench.kv import KvRecord
from grasp_deploy.bench.memory import MemoryRecord
from grasp_deploy.bench.serve import ServeRecord
from grasp_deploy.bench.throughput import ThroughputRecord
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate import table as compare_show
from grasp_deploy.evaluate.compare import CompareRecord
from grasp_deploy.evaluate.tasks import table as tasks_show
from grasp_deploy.evaluate.tasks.accuracy import TasksRecord
from grasp_deploy.files.json_files import typed
from grasp_deploy.report.section import REMEDY, Section, read_records


class Kind(NamedTuple):
    """How the records of one benchmark are titled, typed and drawn."""

    title: str
    record: type[Any]
    show: ModuleType  # its `tables`, `headlines` and `figures` take the typed record


KINDS = {
    "throughput": Kind("Throughput and latency", ThroughputRecord, throughput_show),
    "memory": Kind("Prefill memory", MemoryRecord, memory_show),
    "kv": Kind("KV cache", KvRecord, kv_show),
    "serve": Kind("Load on the live server", ServeRecord, serve_show),
    "tasks": Kind("Accuracy on tasks", TasksRecord, tasks_show),
    "compare": Kind("Losses compared", CompareRecord, compare_show),
}


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
        tables=kind.show.tables(record),
        headlines=list(kind.show.headlines(record)),
        figures=lambda: list(kind.show.figures(record)),
        models=document["models"],
    )
