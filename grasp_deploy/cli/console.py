"""The output streams of the command line, and the end of its exceptions."""

import errno
import inspect
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperGroup

from grasp_deploy.errors import ChildError, InputError, first_line, is_out_of_memory, printable

CHECK_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes
LESS_MEMORY = (
    "use a smaller batch size, a shorter --sequence-length, --dtype bfloat16, or a larger device"
)
LEAST_WIDTH = 40
PATIENCE_SECONDS = 30.0  # the first process may still be importing
UsageError: Any = typer.BadParameter.__base__  # Typer has no public name for it


class PlainConsole(Console):
    """A console that prints text literally: escapes are shown, and brackets are no markup."""

    @property  # type: ignore[misc]  # nobody sets it
    def size(self) -> ConsoleDimensions:
        """That of the terminal, or the least width at which rich draws every table."""
        found = super().size
        return ConsoleDimensions(max(found.width, LEAST_WIDTH), found.height)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


stdout = PlainConsole(emoji=False, markup=False)
stderr = PlainConsole(stderr=True, emoji=False, markup=False, highlight=False)


class Commands(TyperGroup):
    """A group of commands; joins the lines of each help paragraph, for the terminal to wrap."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command and command.help:
            paragraphs = inspect.cleandoc(command.help).split("\n\n")
            command.help = "\n\n".join(part.replace("\n", " ") for part in paragraphs)
        return command


class ErrorBoundary(Commands):
    """The group of all commands: bad input ends in one line, our own bugs in a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept `--verbose` after the verb too, but not among the flags after `--`."""
        end = args.index("--") if "--" in args else len(args)
        if "--verbose" in args[:end]:
            own = [argument for argument in args[:end] if argument != "--verbose"]
            args = ["--verbose", *own, *args[end:]]
        with error_boundary():
            for argument in args:  # JSON, safetensors and cards are UTF-8, and hold such names
                if argument != argument.encode(errors="replace").decode():
                    raise InputError(f"{argument!r} is not UTF-8: choose another name")
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with error_boundary():
            return super().invoke(ctx)


@contextmanager
def error_boundary() -> Iterator[None]:
    """End the process in one line if its input, its machine or its user stops it."""
    try:
        yield
        sys.stdout.flush()  # a full disk ends here in one line, not later in a traceback
    except KeyboardInterrupt:
        if _rank() == "0":
            stderr.print("interrupted")
        sys.exit(INTERRUPTED)
    except ChildError as error:
        stderr.print(f"error: {error}", style="red", soft_wrap=True)
        sys.exit(CHECK_FAILED)
    except Exception as error:
        text = _reason(error)
        if text is None:
            raise
        if _rank() != "0":  # the first process speaks for all, unless it is well
            time.sleep(PATIENCE_SECONDS)  # torchrun ends this process once another has ended
            text = f"process {_rank()}: {text}"
        print_error("error", text)
        sys.exit(BAD_INPUT)


def _reason(error: Exception) -> str | None:
    """One line for bad input, or for a machine that lacks room; None for our own bugs."""
    if isinstance(error, InputError):
        return str(error)
    # Typer prints a box about a wrong option, and shows the help where no word is given.
    if isinstance(error, UsageError) and type(error).__name__ != "NoArgsIsHelpError":
        command = error.ctx.command_path if error.ctx else "grasp-deploy"
        said = error.format_message().rstrip(".").replace("Value error, ", "")  # typer on a Literal
        if type(error).__name__ == "NoSuchOption" and _takes_vllm_flags(error.ctx):
            said += "; flags for vLLM go last, behind a --"
        return f"{said}: see {command} --help"
    # Once the reader of our output has gone, Typer ends the process.
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        if error.errno == errno.ENOSPC and not error.filename:  # flushing stdout would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        where = f"{error.filename}: " if error.filename else ""
        remedy = "see whether the files named exist, may be read and written, and have room"
        return f"{where}{error.strerror or error}: {remedy}"
    if isinstance(error, MemoryError | RuntimeError) and is_out_of_memory(error):
        return f"out of memory ({first_line(error)}): {LESS_MEMORY}"
    return None


def _takes_vllm_flags(context: Any) -> bool:
    return any("-- VLLM" in (parameter.metavar or "") for parameter in context.command.params)


def is_under_torchrun() -> bool:
    """True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _rank() -> str:
    rank = os.environ.get("RANK", "0")
    return rank if is_under_torchrun() and rank.isdecimal() else "0"


@contextmanager
def tidy_process() -> Iterator[None]:
    """Set up a process: clean-up code runs on signals too, and all three streams exist."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  open to the end
    if isinstance(sys.stdout, TextIOWrapper):  # file names need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    # A closed terminal ends it likewise, unless nohup lets it go on.
    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    except KeyboardInterrupt:  # before any command began
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # nothing is left to clean up


def print_error(label: str, text: str) -> None:
    """One line on the error stream, however narrow the terminal."""
    line = Text.assemble((f"{label}:", "bold red"), " ", " ".join(text.split()))
    stderr.print(line, soft_wrap=True)


def print_line(text: str) -> None:
    """One line on stdout as it is, however narrow the terminal."""
    stdout.print(text, soft_wrap=True, highlight=False)


def silence_libraries() -> None:
    """Keep warnings of libraries off the error stream; show what `grasp_deploy.data` logs."""
    for library in ("TRANSFORMERS", "HF_HUB"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")  # read when it is imported
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    show = cache(partial(stderr.print, soft_wrap=True))  # each text once
    handler, logger = logging.Handler(), logging.getLogger("grasp_deploy.data")
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def log_to_stderr() -> None:
    """Show the package's log with times on the error stream, above any progress bar."""
    from rich.logging import RichHandler

    handler = RichHandler(console=stderr, show_path=False, log_time_format="%H:%M:%S")
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("grasp_deploy")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def print_json(record: dict[str, Any]) -> None:
    """Print the one document of `--json` on stdout."""
    print(json.dumps(record, indent=2).replace("\x7f", "\\u007f"))  # all else is escaped
