"""Records as files hold them, and as the parts that terminal, page and figures are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.table import Table

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import read_record

if TYPE_CHECKING:  # matplotlib is needed only where figures are drawn
    from matplotlib.figure import Figure

REMEDY = "run its command again, or name another record"
Line = dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its file, and what it shows in words."""

    name: str
    title: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """A record with what draws it.

    `headlines` are JSON objects with `model`, `outcome` and `sentence`. `models` are the record's
    models with their `footprint`, whose kept layers a page draws once for all that share them.
    """

    name: str  # of the record's file; figures are called after it
    title: str
    record: Mapping[str, Any]  # as it was read
    tables: list[Table]
    headlines: list[Line] = field(default_factory=list)
    figures: Callable[[], list[Drawing]] = list
    models: Sequence[Mapping[str, Any]] = ()

    @property
    def label(self) -> str:
        """The name, where it says more than the kind of record."""
        return "" if self.name == self.record["benchmark"] else self.name


class Header(Struct):
    """The keys of every record that a report needs."""

    benchmark: str
    machine: dict[str, Any]
    settings: dict[str, Any]


def read_records(paths: Sequence[Path]) -> list[tuple[str, dict[str, Any], Path]]:
    """Name, document and file of each record; figures are checked where their kind is known.

    Names are those of the files, with a number where two are the same. Raises InputError for a file
    that is not a record, or that is named twice.
    """
    records = []
    places = [os.path.realpath(path) for path in paths]
    for index, path in enumerate(paths):
        if places[index] in places[:index]:
            raise InputError(f"{path} is named twice: name each record once")
        same_name = sum(other.stem == path.stem for other in paths[:index])
        name = f"{path.stem}#{same_name + 1}" if same_name else path.stem
        record = read_record(path)
        typed(record, Header, path, REMEDY)
        records.append((name, record, path))
    return records
