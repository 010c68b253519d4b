"""How every bench begins and ends: where its record may go, and how it is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.cli.console import print_json, stdout
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table


def command_line() -> list[str]:
    """The command as the record keeps it."""
    return ["grasp-deploy", *sys.argv[1:]]


def check_place(output: Path | None, kind: str | None = None) -> None:
    """InputError if a record could not be written there, before anything is measured.

    Only a record is ever replaced, and, where the `kind` of benchmark is told, only one of it.
    """
    if output is None:
        return
    from grasp_deploy.files.disk import is_special
    from grasp_deploy.files.outputs import readable_disk_errors
    from grasp_deploy.files.record import read_record

    with readable_disk_errors(output):
        is_folder, exists = output.is_dir(), output.exists()
        folder = next(parent for parent in output.absolute().parents if parent.exists())
    if is_folder:
        raise InputError(f"--output {output} is a folder: name a file in it")
    if is_special(output):
        raise InputError(f"--output {output} is a pipe or a device: name a file")
    if exists:
        try:
            there = read_record(output)["benchmark"]
        except InputError:
            raise InputError(
                f"--output {output} exists and is no record of this release: name another file"
            ) from None
        if kind is not None and there != kind:
            raise InputError(
                f"--output {output} is a record of {there}, and not of {kind}: name another file"
            )
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"--output {output} cannot be written in {folder}: name another file")


def end(
    record: Any, output: Path | None, as_json: bool, table: Callable[[Any], Table]
) -> None:
    """Write the record if asked to, and print it as JSON or as its table."""
    from msgspec import to_builtins

    from grasp_deploy.files.outputs import readable_disk_errors
    from grasp_deploy.files.record import write_record

    if as_json:
        print_json(to_builtins(record))
    else:
        stdout.print(table(record))
    if output is not None:
        with readable_disk_errors(output):
            write_record(output, record)
