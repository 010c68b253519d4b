"""The table of a study across models, in as many parts as a terminal needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.report.study_tables import perplexity_text
from grasp_deploy.report.table_layout import broken_name, fits, fitting

HEAD_LETTERS = 12  # as many as the figures below have with their range
Point = tuple[float, str]  # budget and model
Study = Mapping[str, Any]


def across_tables(study: Study) -> list[Table]:
    """A row a variant, a column a model and budget, of one of `across.across_models`.

    One table a budget where one of all would be wider than a terminal.
    """
    points = _points(study)
    table = _across_table(study, points)
    if fits(table):
        table.caption = _notes(study)
        return [table]
    budgets = dict.fromkeys(keep for keep, _ in points)
    groups = [
        group
        for budget in budgets
        for group in fitting(
            partial(_across_table, study), [point for point in points if point[0] == budget]
        )
    ]
    tables = [_across_table(study, group) for group in groups]
    tables[-1].caption = _notes(study)
    return tables


def _points(study: Study) -> list[Point]:
    """Those that were measured: budgets from the largest on, in each the models in their order."""
    there = {(cell["keep"], cell["model"]) for cell in study["cells"]}
    keeps = sorted({keep for keep, _ in there}, reverse=True)
    names = [model["name"] for model in study["models"]]
    return [(keep, name) for keep in keeps for name in names if (keep, name) in there]


def _across_table(study: Study, points: Sequence[Point]) -> Table:
    keeps = {keep for keep, _ in points}
    alone = f", keep {points[0][0]:g}" if len(keeps) == 1 else ""
    table = Table(
        title=Text(f"Loss across models, nats per token: study of {study['study']}{alone}"),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("variant", overflow="fold")
    for keep, model in points:
        name = broken_name(model, HEAD_LETTERS)
        head = name if alone else f"{keep:g}\n{name}"
        table.add_column(Text(head), justify="right", overflow="fold")
    cells = {(cell["variant"], cell["keep"], cell["model"]): cell for cell in study["cells"]}
    for variant in dict.fromkeys(cell["variant"] for cell in study["cells"]):
        row = [cells.get((variant, *point)) for point in points]
        if any(row):
            table.add_row(Text(variant), *map(_cell, row))
    return table


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    spread = f" ±{cell['half_range']:.3f}" if cell["seeds"] > 1 else ""
    return f"{cell['excess_nats']:.3f}{spread}"


def _notes(study: Study) -> Text:
    notes = ["ln of the perplexity less ln of the dense model's"]
    if any(len(model["dense_perplexity"]) > 1 for model in study["models"]):
        notes.append("the mean over corpora where a model has several")
    if any(cell["seeds"] > 1 for cell in study["cells"]):
        notes.append("means over seeds ± half their range")
    dense = "; ".join(_dense(model) for model in study["models"])
    return Text(f"{'; '.join(notes)}\ndense perplexities: {dense}")


def _dense(model: Mapping[str, Any]) -> str:
    figures = (f"{perplexity_text(p)} on {c}" for c, p in model["dense_perplexity"].items())
    return f"{model['name']} {', '.join(figures)}"
