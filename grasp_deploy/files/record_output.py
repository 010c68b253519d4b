"""The place of a record: checked before anything is measured."""

from __future__ import annotations

from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import check_file_place
from grasp_deploy.files.record import read_record


def check_place(output: Path | None, kind: str | None = None) -> None:
    """Raise InputError if a record could not be written to `output`, before anything is measured.

    Only a record is ever replaced, and, if `kind` names a benchmark, only a record of that one.
    """
    if output is None:
        return
    if check_file_place(output, "--output"):
        _check_replaceable(output, kind)


def _check_replaceable(output: Path, kind: str | None) -> None:
    try:
        existing = read_record(output)["benchmark"]
    except InputError:
        raise InputError(
            f"--output {output} exists and is no record of this release: name another file"
        ) from None
    if kind is not None and existing != kind:
        raise InputError(
            f"--output {output} is a record of {existing}, and not of {kind}: name another file"
        )
