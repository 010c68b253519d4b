"""Where the command line writes, and where its exceptions end."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from grasp_deploy.errors import ChildError, InputError, first_line

CHECK_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes
LESS_MEMORY = (
    "take a smaller --batch-size, a shorter --sequence-length, --dtype bfloat16, or a larger device"
)
stdout, stderr = Console(emoji=False), Console(stderr=True, emoji=False)


class ErrorBoundary(TyperGroup):
    """Bad input ends in one line, our own bugs in their traceback."""

    def invoke(self, ctx: Any) -> Any:
        with error_boundary():
            return super().invoke(ctx)


@contextmanager
def error_boundary() -> Iterator[None]:
    """Ends the process in one line where its input, its machine or its user stops it."""
    try:
        yield
        sys.stdout.flush()  # a full disk is told here or, as a traceback, after the end
    except InputError as error:
        print_error("error", str(error))
        sys.exit(BAD_INPUT)
    except ChildError as error:
        stderr.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(CHECK_FAILED)
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read our output has gone: Typer's to end
            raise
        _end_of_system_error(error)
        sys.exit(BAD_INPUT)
    except RuntimeError as error:
        if str(error).startswith("Symlink loop"):  # pathlib's word for ELOOP
            print_error("error", f"{error}: point the link at a file or a folder, or name one")
        elif _is_out_of_memory(error):
            print_error("error", f"out of memory ({first_line(error)}): {LESS_MEMORY}")
        else:
            raise
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        stderr.print("interrupted")
        sys.exit(INTERRUPTED)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Of a GPU or of a CPU, by torch's words: the edge does not import torch."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


@contextmanager
def tidy_process() -> Iterator[None]:
    """What every entry point needs: clean-up code runs on SIGTERM too, and all streams exist."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  to the end
    if isinstance(sys.stdout, TextIOWrapper):  # file names need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except KeyboardInterrupt:  # so early that no command had begun
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)  # at its very end there is nothing to clean up


def _end_of_system_error(error: OSError) -> None:
    """What the operating system refused, such as room on a disk or a link that leads to itself."""
    where = f"{error.filename}: " if error.filename else ""
    print_error(
        "error",
        f"{where}{error.strerror or error}: see whether the files and folders named exist, may be "
        "read and written, and have room",
    )
    if error.errno == errno.ENOSPC and not error.filename:  # what waits for stdout will not fit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def print_error(label: str, text: str) -> None:
    """One line on the error stream, however narrow the terminal."""
    line = " ".join(text.split())
    stderr.print(f"[bold red]{label}:[/] {escape(line)}", soft_wrap=True, highlight=False)


def print_json(record: dict[str, Any]) -> None:
    """The one document that `--json` puts on stdout."""
    print(json.dumps(record, indent=2))
