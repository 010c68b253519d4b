"""The end of a bench: its record on stdout and in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.cli.console import print_json, stdout

if TYPE_CHECKING:
    from rich.table import Table


def command_line() -> list[str]:
    """The command as the record keeps it."""
    return ["grasp-deploy", *sys.argv[1:]]


def write_and_print(
    record: Any, output: Path | None, as_json: bool, table: Callable[[Any], Table]
) -> None:
    """Write the record if asked to, and print it as JSON or as its table."""
    from msgspec import to_builtins

    from grasp_deploy.files.record import write_record

    if as_json:
        print_json(to_builtins(record))
    else:
        stdout.print(table(record))
    if output is not None:
        write_record(output, record)
