"""`report`: records as tables, verdicts, figures and a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import Json
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from grasp_deploy.report.section import Section


def report_command(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORD...", help="JSON files that `bench` or `evaluate` wrote."),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the figures.")] = None,
    as_json: Json = False,
) -> None:
    """Show records as tables and verdicts, and on request as figures and a page."""
    from grasp_deploy.bench.kinds import read_sections

    sections = read_sections(records)
    files = write_report(sections, html, png)
    if as_json:
        print_json(report_document(sections, files))
    else:
        print_report(sections, files)


def write_report(sections: Sequence[Section], html: Path | None, png: Path | None) -> list[Path]:
    """Write the page and the figures that are asked for; returns their files.

    Raises InputError if matplotlib is missing, or if a file cannot or may not be written.
    """
    if not (html or png):
        return []
    if find_spec("matplotlib") is None:
        raise InputError(
            "figures need matplotlib, which is not installed: pip install 'grasp-deploy[plot]', "
            "or leave out --html and --png"
        )
    from grasp_deploy.files.disk import write_files
    from grasp_deploy.report.figures import check_ours, png_files
    from grasp_deploy.report.page import page

    with stderr.status("drawing"):
        drawn = (
            {png / name: content for name, content in png_files(sections).items()} if png else {}
        )
        if png and not drawn:
            raise InputError("--png: none of these records has a figure; leave it out")
        for path in drawn:
            check_ours(path, "--png")
        if html:
            check_ours(html, "--html")
            places = [Path(os.path.realpath(path)) for path in (html, *drawn)]
            if any(path.is_relative_to(places[0]) for path in places[1:]):
                raise InputError(f"--html {html} is where --png writes: name another file")
            drawn[html] = page(sections).encode()
        write_files(drawn)
    return list(drawn)


def report_document(sections: Sequence[Section], files: Sequence[Path]) -> dict[str, Any]:
    """The JSON document of a report: verdicts by record, and the files written."""
    records = [
        {
            "name": section.name,
            "benchmark": section.record["benchmark"],
            "headlines": section.headlines,
        }
        for section in sections
    ]
    return {"records": records, "files": [str(path) for path in files]}


def print_report(sections: Sequence[Section], files: Sequence[Path]) -> None:
    """Print each section's tables and verdicts, then the files written."""
    for section in sections:
        stdout.print()
        stdout.rule(": ".join(filter(None, (section.title, section.label))), align="left")
        for table in section.tables:
            stdout.print(table)
        for line in section.headlines:
            print_line(f"{line['model']}: {line['sentence']}")
    for path in files:
        stderr.print(f"wrote {path}", soft_wrap=True)
