"""Where the command line writes, and where its exceptions end."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from grasp_deploy.errors import ChildError, InputError

CHECK_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes
stdout, stderr = Console(emoji=False), Console(stderr=True, emoji=False)


class Edge(TyperGroup):
    """Bad input ends in one line, our own bugs in their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            print_error("error", str(error))
            sys.exit(BAD_INPUT)
        except ChildError as error:
            stderr.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            sys.exit(CHECK_FAILED)
        except KeyboardInterrupt:
            stderr.print("interrupted")
            sys.exit(INTERRUPTED)


def print_error(label: str, text: str) -> None:
    """One line on the error stream, however narrow the terminal."""
    line = " ".join(text.split())
    stderr.print(f"[bold red]{label}:[/] {escape(line)}", soft_wrap=True, highlight=False)


def print_json(record: dict[str, Any]) -> None:
    """The one document that `--json` puts on stdout."""
    print(json.dumps(record, indent=2))
