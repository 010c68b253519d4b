"""Draw records of studies as tables, figures and a page, as `grasp-deploy report` does of benches.

Records of benches are drawn too, so that a page can show both.

    python -m benchmarks.report benchmarks/results/quality_methods-*.json --html page.html
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.budgets import Budgets, tables_of
from benchmarks.common.output import new_parser, run_command
from benchmarks.common.tables import record_table
from benchmarks.recovery_curve import Curve, table_of
from benchmarks.study.record import Study, study_of
from benchmarks.study.rows import beside
from benchmarks.study.tables import (
    accuracy_tables,
    budget_tables,
    kept_table,
    quality_tables,
)
from grasp_deploy.bench.kinds import KINDS, section_of
from grasp_deploy.cli.console import print_json
from grasp_deploy.cli.report import print_report, report_document, write_report
from grasp_deploy.files.json_files import typed
from grasp_deploy.report.section import REMEDY, Drawing, Section, read_records


def section(name: str, record: dict[str, Any], path: Path) -> Section:
    """The section of a record of a study, or of a bench; InputError for a damaged one."""
    kind, made = record["benchmark"], partial(Section, name, record=record)
    if kind in KINDS:
        return section_of(name, record, path)
    if kind == "study":
        study = study_of(record, path)
        tables = [*quality_tables(study), *accuracy_tables(study), kept_table(study)]
        tables += budget_tables(study)
        figures = partial(_study_figures, study)
        return made(title="Studies of quality", tables=tables, figures=figures)
    if kind == "budgets":
        tables = tables_of(typed(record, Budgets, path, REMEDY))
        return made(title="Families and bounds", tables=tables)
    if kind == "recovery-curve":
        typed(record, Curve, path, REMEDY)
        return made(title="Recovery", tables=[table_of(record["rows"])])
    title = kind.replace("_", " ").capitalize()
    return made(title=title, tables=[record_table(record)])


def _study_figures(study: Study) -> list[Drawing]:
    from benchmarks.study.plot import study_drawings  # needs matplotlib

    return list(study_drawings(study))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--png", type=Path, metavar="DIR", help="write the figures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--beside", action="store_true", help="draw the rows of all studies in the same figures"
    )
    options = parser.parse_args(arguments)
    records = read_records(options.records)
    if options.beside:
        study = beside([study_of(record, path) for _, record, path in records])
        records = [(records[0][0], study.as_record(), records[0][2])]
    sections = [section(*named) for named in records]
    files = write_report(sections, options.html, options.png)
    if options.json:
        print_json(report_document(sections, files))
    else:
        print_report(sections, files)


if __name__ == "__main__":
    run_command(main)
