"""One HTML file that says what was won: verdicts, figures, tables, and where they come from.

It needs no network and no scripts, follows the reader's light or dark setting, and fits a phone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.verdicts import headlines
from grasp_deploy.report.cross_model import across_models
from grasp_deploy.report.cross_model_tables import across_tables
from grasp_deploy.report.plots import Drawing, color_rules, drawings, shape_drawings, svg
from grasp_deploy.report.record_tables import provenance_table, record_tables
from grasp_deploy.report.records import NamedRecord
from grasp_deploy.version import __version__

GENERATOR = '<meta name="generator" content="grasp-deploy'  # how a page of ours is known
STYLE_FILE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # nothing is loaded, nothing is run
TONES = {"faster": "good", "as predicted": "good", "no request failed": "good"}
BAD = ("slower", "not as predicted", "failed")


def page(records: Sequence[NamedRecord]) -> str:
    """The whole page of some records, as HTML."""
    title = "Benchmarks: " + ", ".join(dict.fromkeys(named.title for named in records))
    verdicts = "".join(_verdict_section(named) for named in records)
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f'{GENERATOR} {__version__}">\n',
            f"<title>{_escaped(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n<main>\n",
            f"<h1>{_escaped(title)}</h1>\n",
            f"<h2>Verdicts</h2>\n{verdicts}" if verdicts else "",
            _figures(records),
            _tables(records),
            "</main>\n</body>\n</html>\n",
        )
    )


def _style() -> str:
    variables = (
        f":root {{ {color_rules(dark=False)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {color_rules(dark=True)} }} }}\n"
    )
    return variables + STYLE_FILE.read_text(encoding="utf-8")


def _verdict_section(named: NamedRecord) -> str:
    """The headlines of a record, model by model; empty if it has none."""
    lines = headlines(named.record)
    if not lines:
        return ""
    parts = [f'<section class="verdicts">\n<h3>{_heading(named)}</h3>\n']
    for model in dict.fromkeys(line["model"] for line in lines):
        some = [line for line in lines if line["model"] == model]
        items = "".join(_verdict(line) for line in some if "reason" not in line)
        parts.append(f"<h4>{_escaped(model)}</h4>\n<ul>\n{items}</ul>\n")
        reasons = [line for line in some if "reason" in line]
        if reasons:
            listed = "".join(f"<li>{_prose(line['sentence'])}</li>\n" for line in reasons)
            parts.append(f"<p>Short of the ideal. Likely reasons:</p>\n<ul>\n{listed}</ul>\n")
    return "".join([*parts, "</section>\n"])


def _verdict(line: dict[str, Any]) -> str:
    outcome = line["outcome"]
    tone = TONES.get(outcome) or ("bad" if outcome.endswith(BAD) else "neutral")
    badge = f'<span class="badge {tone}">{_escaped(outcome)}</span>'
    return f"<li>{badge} {_prose(line['sentence'])}</li>\n"


def _figures(records: Sequence[NamedRecord]) -> str:
    """The figures of every record, and once for each set of models what their layers keep."""
    groups = [(_heading(named), drawings(named.record)) for named in records]
    of_shapes = shape_drawings(named.record for named in records)
    for named, shapes in zip(records, of_shapes, strict=True):
        groups.append((f"What each layer keeps <small>{_escaped(named.name)}</small>", shapes))
    parts, number = [], 0
    for heading, some in groups:
        if some:
            parts.append(f"<h3>{heading}</h3>\n{_grid(some, number)}")
            number += len(some)
    return f"<h2>Figures</h2>\n{''.join(parts)}" if parts else ""


def _grid(some: Iterable[Drawing], number: int) -> str:
    drawn = (svg(drawing, f"f{number + index}") for index, drawing in enumerate(some))
    figures = "".join(f"<figure>{one}</figure>\n" for one in drawn)
    return f'<div class="figures">\n{figures}</div>\n'


def _tables(records: Sequence[NamedRecord]) -> str:
    parts = ["<h2>Tables</h2>\n"]
    for named in records:
        parts.append(f"<h3>{_heading(named)}</h3>\n")
        parts += [_table(table) for table in record_tables(named.record)]
    for study in across_models(records):
        parts.append(f"<h3>Across models <small>{_escaped(study['study'])}</small></h3>\n")
        parts += [_table(table) for table in across_tables(study)]
    parts.append("<h2>Where the figures come from</h2>\n")
    for named in records:
        parts.append(f"<h3>{_heading(named)}</h3>\n")
        parts.append(_table(provenance_table(named.record), caption=False))
    return "".join(parts)


def _table(table: Table, *, caption: bool = True) -> str:
    """A rich table as HTML, in a box of its own that scrolls sideways if need be."""
    columns = table.columns
    sides = ["right" if column.justify == "right" else "left" for column in columns]
    rows = zip(*(column.cells for column in columns), strict=True)
    heads = "".join(
        f'<th scope="col" class="{side}">{_head(column.header)}</th>'
        for side, column in zip(sides, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{s}">{_cell(c)}</td>' for s, c in zip(sides, row, strict=True))
        + "</tr>\n"
        for row in rows
    )
    lines = _cell(table.caption or "").replace("\n", "<br>")
    note = f"<small>{lines}</small>" if lines else ""
    title = f"<caption>{_cell(table.title or '')} {note}</caption>\n" if caption else ""
    head = f"<thead><tr>{heads}</tr></thead>\n" if table.show_header else ""
    kind = "points" if table.show_header else "facts"
    return (
        f'<div class="box" tabindex="0">\n<table class="{kind}">\n{title}{head}<tbody>\n{body}'
        "</tbody>\n</table>\n</div>\n"
    )


def _heading(named: NamedRecord) -> str:
    return f"{_escaped(named.title)} <small>{_escaped(named.name)}</small>"


def _cell(content: Any) -> str:
    """The plain text of a cell of a rich table, escaped; bold where the whole cell is."""
    text = content if isinstance(content, Text) else Text.from_markup(str(content))
    plain = _escaped(text.plain)
    return f"<b>{plain}</b>" if text.style == "bold" else plain


def _head(content: Any) -> str:
    """A head; a page may break a name where a terminal does, and shows no space there."""
    return re.sub("([_-])\n", r"\1<wbr>", _cell(content))


def _prose(sentence: str) -> str:
    """A sentence, escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escaped(sentence))


def _escaped(text: str) -> str:
    return html.escape(text)
