"""One self-contained HTML page of sections: verdicts, figures, tables, provenance.

It needs no network and no scripts, follows the reader's light or dark setting, and fits a phone.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table
from rich.text import Text

from grasp_deploy.checkpoint.card.quality_verdict import BROKEN, DROP_IN, NEEDS_HEALING
from grasp_deploy.errors import printable
from grasp_deploy.report.figure_style import svg
from grasp_deploy.report.figures import figure_groups
from grasp_deploy.report.section import Section
from grasp_deploy.report.tables import provenance_table
from grasp_deploy.stats.wording import grouped, listed
from grasp_deploy.version import __version__

GOOD = ("faster", "ahead", "as predicted", "no request failed", DROP_IN)
BAD_ENDINGS = ("slower", "behind", "not as predicted", "failed", NEEDS_HEALING, BROKEN)
NAMED_MODELS = 3  # in the title
QUALITY = ("compare", "tasks")  # what a reader must know before any speed


def page(sections: Sequence[Section]) -> str:
    """The HTML of a page that shows all sections, those on quality first."""
    sections = sorted(sections, key=lambda section: section.record["benchmark"] not in QUALITY)
    environment = Environment(
        loader=PackageLoader("grasp_deploy.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["tone"] = _tone
    environment.filters["base64"] = lambda drawing: b64encode(svg(drawing)).decode()
    models = list(dict.fromkeys(m["name"] for section in sections for m in section.models))
    more = [f"{len(models) - NAMED_MODELS} more"] * (len(models) > NAMED_MODELS)
    names = listed([*models[:NAMED_MODELS], *more]) if models else "Benchmarks"
    about = sections[0].title if len(sections) == 1 else f"{len(sections)} records"
    html = environment.get_template("page.html.jinja").render(
        title=f"{names}: {about}",
        version=__version__,
        verdicts=[
            (section, grouped(section.headlines, lambda line: line["model"]))
            for section in sections
            if section.headlines
        ],
        figures=list(figure_groups(sections)),
        tables=[(section, map(_rows, section.tables)) for section in sections],
        sources=[(section, _rows(provenance_table(section.record))) for section in sections],
    )
    return printable(html)


def _rows(table: Table) -> dict[str, Any]:
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    heads = [_plain(column.header) for column in table.columns if table.show_header]
    columns = [[(_plain(cell), _is_bold(cell)) for cell in c.cells] for c in table.columns]
    return {
        "title": _plain(table.title or ""),
        "notes": _plain(table.caption or "").splitlines(),
        "sides": sides,
        "head": heads,
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
