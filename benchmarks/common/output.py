"""How a script ends: with its record, or in one line where something stops it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from grasp_deploy.cli.console import error_boundary, tidy_process
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import readable_disk_errors
from grasp_deploy.files.record import write_record
from grasp_deploy.pruning.objective import LossError


def run(main: Callable[[], None]) -> None:
    """Call a script's `main`."""
    with tidy_process(), error_boundary():
        try:
            main()
        except LossError as error:
            raise InputError(str(error)) from None


def write(output: Path | None, record: dict[str, Any]) -> None:
    """Write a record where a file is named for it; InputError names it if the disk takes none."""
    if output is not None:
        with readable_disk_errors(output):
            write_record(output, record)
