"""The record of `benchmarks.published`, and its tables: ours in the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from rich.table import Table
from rich.text import Text

from benchmarks.study.published_figures import TABLES, Figure, PublishedTable
from grasp_deploy.config.compress_config import OWN
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed

OURS, DENSE = "ours", "dense, measured here"
COLUMNS = 3  # of figures in a printed table, which is to fit a terminal


class Row(Struct, kw_only=True):
    """One model at one budget of a published table: its size, and figures as the table has them."""

    table: str
    keep: Annotated[float, Meta(gt=0, le=1)]  # 1: the dense model
    parameters: Annotated[int, Meta(gt=0)]
    calibration: list[str]
    values: dict[str, float]  # perplexity by corpus, accuracy in percent by task
    seconds: dict[str, Annotated[float, Meta(ge=0)]]
    options: dict[str, Any]


class Published(Struct):
    """The figures of a record of `published`."""

    settings: dict[str, Any]
    rows: list[Row]


def published_of(record: dict[str, Any], path: Path) -> Published:
    """The rows that a record holds; InputError names the file and what is wrong in it."""
    remedy = "run `python -m benchmarks.published` again, or name another file"
    found = typed(record, Published, path, remedy)
    if unknown := {row.table for row in found.rows} - TABLES.keys():
        raise InputError(f"{path} has rows of an unknown table, {min(unknown)}: {remedy}")
    return found


def published_tables(published: Published) -> Iterator[Table]:
    """Each published table with our rows in it by budget, a few columns at a time."""
    for table in TABLES.values():
        ours = [row for row in published.rows if row.table == table.name]
        values = [figure.values for figure in table.figures] + [row.values for row in ours]
        found = {name for some in values for name in some}
        columns = [name for name in table.columns if name in found]
        starts = range(0, len(columns) if ours else 0, COLUMNS)
        for start in starts:
            drawn = _part(table, ours, columns[start : start + COLUMNS])
            drawn.caption = _caption(table, ours) if start == starts[-1] else None
            yield drawn


def _part(table: PublishedTable, ours: Sequence[Row], columns: Sequence[str]) -> Table:
    """Some columns of a published table, where a method has any of them."""
    drawn = Table(title=table.source, title_justify="left", caption_justify="left")
    drawn.add_column("removed", justify="right", no_wrap=True)
    drawn.add_column("method", overflow="fold")
    for name in columns:
        drawn.add_column(name, justify="right")
    for keep in (1.0, *table.keeps):
        for figure in (*table.figures, *map(_as_figure, ours)):
            if figure.keep == keep and figure.values.keys() & set(columns):
                method = Text(figure.method + "*" * bool(figure.source))
                cells = (_cell(figure, name) for name in columns)
                drawn.add_row(f"{1 - keep:.1%}", method, *cells)
        drawn.add_section()
    return drawn


def _cell(figure: Figure, name: str) -> str:
    return f"{figure.values[name]:.2f}" if name in figure.values else ""


def _as_figure(row: Row) -> Figure:
    name = OURS if row.keep < 1 else DENSE
    return Figure(f"{name}, {row.parameters / 1e6:,.1f} M", row.keep, row.values)


def _caption(table: PublishedTable, ours: Sequence[Row]) -> Text:
    """The settings of the published figures and of ours."""
    texts = dict.fromkeys(text for row in ours for text in row.calibration)
    alone = "" if OWN in texts else ", without the model's own text (which the default adds)"
    calibrated = f"calibrated on {', '.join(texts)}{alone}; " if texts else ""
    sources = dict.fromkeys(figure.source for figure in table.figures if figure.source)
    marked = f"\n* from {'; '.join(sources)}." if sources else ""
    return Text(
        f"removed: {table.sparsity_means}.\nPublished: {table.setting}.\nOurs: {calibrated}no "
        f"special tokens; the same lengths and tasks, lm-eval's present release.{marked}"
    )
