"""Records as files hold them, with the names of what is drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import read_record


class Header(Struct):
    """The keys of every record that a report needs."""

    benchmark: str
    machine: dict[str, Any]
    settings: dict[str, Any]


@dataclass(frozen=True)
class NamedRecord:
    """A record as it was read, its file, and the name of everything drawn from it."""

    name: str
    record: dict[str, Any]
    path: Path = Path("record.json")


def read_records(paths: Sequence[Path]) -> list[NamedRecord]:
    """Read the records in these files; figures are checked where their kind is known.

    Names are those of the files, with a number where two are the same. Raises InputError for a file
    that is not a record, or that is named twice.
    """
    records: list[NamedRecord] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path} is named twice: name each record once")
        seen.add(path.resolve())
        same_name = sum(named.path.stem == path.stem for named in records)
        name = f"{path.stem}#{same_name + 1}" if same_name else path.stem
        record = read_record(path)
        typed(record, Header, path, "run its command again, or name another record")
        records.append(NamedRecord(name, record, path))
    return records
