"""Draw records of studies as tables, figures and a page, as `grasp-deploy report` does of benches.

Studies of quality with one name on several models are laid side by side. Records of benches are
drawn too, so that a page can show both.

    python -m benchmarks.report benchmarks/results/quality_methods-*.json --html page.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.common.output import new_parser, run_command
from benchmarks.stability_report import stability_of, stability_table
from benchmarks.startup_report import startup_drawing, startup_of, startup_table
from benchmarks.study.across_models import AcrossModels, across_models, across_tables
from benchmarks.study.record import Study, study_of
from benchmarks.study.tables import budget_tables, kept_table, quality_tables
from benchmarks.study.task_tables import accuracy_tables
from grasp_deploy.bench.kinds import KINDS, section_of
from grasp_deploy.cli.console import print_json
from grasp_deploy.cli.report import print_report, report_document, write_report
from grasp_deploy.report.section import NamedRecord, Section, read_records
from grasp_deploy.report.tables import value_table

if TYPE_CHECKING:  # matplotlib is needed only where figures are drawn
    from grasp_deploy.report.figure_style import Drawing


def section(named: NamedRecord, path: Path) -> Section:
    """The section of a record of a study, or of a bench."""
    match named.record["benchmark"]:
        case "study":
            return study_section(named, study_of(named.record, path))
        case "startup":
            startup = startup_of(named.record, path)
            return Section(
                name=named.name,
                title="Start of the server",
                record=named.record,
                tables=lambda: [startup_table(startup)],
                figures=lambda: [startup_drawing(startup)],
                models=named.record["models"],
            )
        case "mask-stability":
            stability = stability_of(named.record, path)
            return Section(
                name=named.name,
                title="Mask stability",
                record=named.record,
                tables=lambda: [stability_table(stability)],
            )
        case kind if kind not in KINDS:
            return Section(
                name=named.name,
                title=kind.replace("_", " ").capitalize(),
                record=named.record,
                tables=lambda: [value_table(named.record)],
            )
    return section_of(named)


def study_section(named: NamedRecord, study: Study) -> Section:
    """The section of a study of quality."""

    def drawings() -> list[Drawing]:
        from benchmarks.study.plot import study_drawings

        return list(study_drawings(study))

    return Section(
        name=named.name,
        title="Studies of quality",
        record=named.record,
        tables=lambda: [
            *quality_tables(study),
            *accuracy_tables(study),
            kept_table(study),
            *budget_tables(study),
        ],
        figures=drawings,
    )


def across_sections(combined: Sequence[AcrossModels]) -> list[Section]:
    """A section without a record of its own for each study of several models."""
    return [
        Section(
            name=across.study,
            title="Across models",
            record={},
            tables=lambda across=across: across_tables(across),  # type: ignore[misc]
        )
        for across in combined
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--png", type=Path, metavar="DIR", help="write the figures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    records = read_records(options.records)
    pairs = list(zip(records, options.records, strict=True))
    sections = [section(named, path) for named, path in pairs]
    combined = across_models(
        {n.name: study_of(n.record, path) for n, path in pairs if n.record["benchmark"] == "study"}
    )
    shown = [*sections, *across_sections(combined)]
    files = write_report(shown, options.html, options.png)
    if options.json:
        document = report_document(sections, files)
        print_json({**document, "across_models": msgspec.to_builtins(combined)})
    else:
        print_report(shown, files)


if __name__ == "__main__":
    run_command(main)
