"""One self-contained HTML page of sections: verdicts, figures, tables, provenance.

It needs no network and no scripts, follows the reader's light or dark setting, and fits a phone.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table
from rich.text import Text

from grasp_deploy.errors import printable
from grasp_deploy.report.figure_style import Drawing, svg
from grasp_deploy.report.figures import figure_groups, layer_groups
from grasp_deploy.report.section import Section
from grasp_deploy.report.tables import provenance_table
from grasp_deploy.version import __version__

GOOD = ("faster", "as predicted", "no request failed")
BAD_ENDINGS = ("slower", "not as predicted", "failed")


def page(sections: Sequence[Section]) -> str:
    """The HTML of a page that shows all sections."""
    environment = Environment(
        loader=PackageLoader("grasp_deploy.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"tone": _tone, "uri": _uri}
    titles = dict.fromkeys(section.title for section in sections)
    html = environment.get_template("page.html.jinja").render(
        title="Benchmarks: " + ", ".join(titles),
        version=__version__,
        verdicts=[(section, _by_model(section)) for section in sections if section.headlines],
        figures=[
            *((section.title, section.label, d) for section, d in figure_groups(sections)),
            *(("What each layer keeps", section.label, d) for section, d in layer_groups(sections)),
        ],
        tables=[(section, [_rows(table) for table in section.tables()]) for section in sections],
        sources=[
            (section, _rows(provenance_table(section.record)))
            for section in sections
            if section.record
        ],
    )
    return printable(html)


def _by_model(section: Section) -> dict[str, list[dict[str, Any]]]:
    models: dict[str, list[dict[str, Any]]] = {}
    for line in section.headlines:
        models.setdefault(line["model"], []).append(line)
    return models


def _rows(table: Table) -> dict[str, Any]:
    columns, sides = [], []
    for column in table.columns:
        side = "right" if column.justify == "right" else "left"
        sides.append(side)
        columns.append([(side, _plain(cell), _is_bold(cell)) for cell in column.cells])
    heads = [_plain(column.header) for column in table.columns if table.show_header]
    return {
        "title": _plain(table.title or ""),
        "notes": _plain(table.caption or "").splitlines(),
        "head": list(zip(sides, heads, strict=False)),
        "rows": list(zip(*columns, strict=True)),
    }


def _plain(content: Any) -> str:
    return content.plain if isinstance(content, Text) else str(content)


def _is_bold(cell: Any) -> bool:
    return isinstance(cell, Text) and cell.style == "bold"


def _tone(outcome: str) -> str:
    if outcome in GOOD:
        return "good"
    return "bad" if outcome.endswith(BAD_ENDINGS) else "neutral"


def _uri(drawing: Drawing) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg(drawing)).decode()}"
