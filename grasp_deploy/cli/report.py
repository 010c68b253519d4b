"""`report`: records as tables, verdicts, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_deploy.cli.console import print_json, stderr, stdout
from grasp_deploy.cli.options import Json
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from grasp_deploy.report.records import NamedRecord


def report_command(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORD...",
            help="JSON files that benches, studies or `evaluate tasks` wrote.",
            show_default=False,
        ),
    ],
    *,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write one self-contained page.", show_default=False
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="DIR", help="Write the figures.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print tables and verdicts of records; on request, write figures and one page."""
    from grasp_deploy.report.records import read_records

    named = read_records(records)
    files = write_report(named, records, html, png) if html or png else []
    if as_json:
        print_json(report_document(named, files))
        return
    for one in named:
        print_record(one)
    print_across(named)
    for path in files:
        stderr.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def write_report(
    named: Sequence[NamedRecord], records: Sequence[Path], html: Path | None, png: Path | None
) -> list[Path]:
    """Draw and write the page and the figures; returns the files.

    Raises InputError if matplotlib is missing, or if a file cannot or may not be written.
    """
    from grasp_deploy.files.disk import write_files
    from grasp_deploy.report.files import (
        check_page_place,
        check_picture_place,
        check_pictures,
    )

    try:
        from grasp_deploy.report.page import GENERATOR, page
        from grasp_deploy.report.png import PNG_MARK, pictures
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise InputError(
            "figures need matplotlib, which is not installed: pip install 'grasp-deploy[plot]', "
            "or leave out --html and --png"
        ) from None

    if html:
        check_page_place(html, records, GENERATOR)
    if png:
        check_picture_place(png)
    with stderr.status("drawing"):
        files = {html: page(named).encode()} if html else {}
        if png:
            drawn = {png / name: content for name, content in pictures(named).items()}
            check_pictures(drawn, PNG_MARK)
            files |= drawn
        if not files:
            raise InputError("--png: none of these records has a figure; leave it out")
        write_files(files)
    return list(files)


def report_document(named: Sequence[NamedRecord], files: Sequence[Path]) -> dict[str, Any]:
    """What `--json` prints: verdicts by record, studies across models, and the files written."""
    from grasp_deploy.bench.verdicts import headlines, verdicts
    from grasp_deploy.report.cross_model import across_models

    rows = [
        {
            "name": one.name,
            "benchmark": one.record["benchmark"],
            "headlines": headlines(one.record),
            "verdicts": verdicts(one.record),
        }
        for one in named
    ]
    return {
        "records": rows,
        "across_models": across_models(named),
        "files": [str(path) for path in files],
    }


def print_record(named: NamedRecord) -> None:
    """A record's tables, then its verdicts in words."""
    from grasp_deploy.bench.verdicts import headlines
    from grasp_deploy.report.record_tables import record_tables

    stdout.print()
    stdout.rule(f"{named.title}: {named.name}", align="left")
    for table in record_tables(named.record):
        stdout.print(table)
    for line in headlines(named.record):
        who = "  likely reason" if "reason" in line else line["model"]
        text = f"{who}: {line['sentence']}"
        stdout.print(text, soft_wrap=True, markup=False, highlight=False)


def print_across(named: Sequence[NamedRecord]) -> None:
    """A table for each study that several of the records hold of different models."""
    from grasp_deploy.report.cross_model import across_models
    from grasp_deploy.report.cross_model_tables import across_tables

    for study in across_models(named):
        stdout.print()
        stdout.rule(f"Across models: study of {study['study']}", align="left")
        for table in across_tables(study):
            stdout.print(table)
