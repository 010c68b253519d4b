"""Start and end of every study: its options, its record, and one line if it is stopped."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from grasp_deploy.cli.console import error_boundary, tidy_process
from grasp_deploy.errors import InputError
from grasp_deploy.files import record as records
from grasp_deploy.files.disk import readable_disk_errors, write_files
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import check_place as check_place
from grasp_deploy.pruning.objective import LossError
from grasp_deploy.report.progress import stage_bars

FOLDER = Path(__file__).parents[1]
CONFIGS = FOLDER / "configs"


def run_command(main: Callable[[], None]) -> None:
    """Call the `main` of a study as a process: input that cannot be used ends in one line."""
    with tidy_process(), error_boundary():
        try:
            main()
        except LossError as error:
            raise InputError(str(error)) from None


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the docstring of a study as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_output_options(parser: argparse.ArgumentParser, smoke: str) -> None:
    """Add `--output` and `--smoke`, whose help is given."""
    parser.add_argument("--smoke", action="store_true", help=smoke)
    parser.add_argument("--output", type=Path, help="where to write the JSON record")


def parsed(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    kind: str,
    smoke: str = "a few seconds; figures of no use",
) -> argparse.Namespace:
    """The options of a study, with `--output` and `--smoke` among them.

    InputError if no record of that kind can be written there.
    """
    add_output_options(parser, smoke)
    options = parser.parse_args(arguments)
    check_place(options.output, kind)
    return options


def check_positive(options: argparse.Namespace, *names: str) -> None:
    """InputError for the first of these numbers that is not above 0."""
    for name in names:
        value = getattr(options, name)
        if not value > 0:  # refuses nan too
            raise InputError(f"--{name.replace('_', '-')} {value} is not above 0: give more")


def command_of(name: str, arguments: Sequence[str] | None) -> list[str]:
    """The command as a record keeps it."""
    given = sys.argv[1:] if arguments is None else arguments
    return ["python", "-m", f"benchmarks.{name}", *given]


def new_record(
    kind: str, arguments: Sequence[str] | None, settings: Any, **figures: Any
) -> dict[str, Any]:
    """A record of the study of that kind, which its module is called after."""
    command = command_of(kind.replace("-", "_"), arguments)
    return records.new_record(kind, command, settings, **figures)


@contextmanager
def working_folder(name: str) -> Iterator[tuple[Path, OnProgress]]:
    """A temporary folder, and what shows progress on the error stream."""
    with (
        TemporaryDirectory(prefix=f"{name}-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        yield Path(folder), on_progress


def write_png(path: Path, figure: Any) -> None:
    """Write a figure of matplotlib in one move; InputError for a file that is not one of ours."""
    from grasp_deploy.report.figure_style import png
    from grasp_deploy.report.figures import check_ours

    check_ours(path, "--png")
    write_files({path: png(figure)})


def write(output: Path | None, record: Any) -> None:
    """Write a record if a file is named for it; InputError if the disk refuses."""
    if output is not None:
        with readable_disk_errors(output):
            records.write_record(output, record)
