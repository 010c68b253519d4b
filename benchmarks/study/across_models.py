"""One study on several models: the losses of each way of compressing side by side."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.study.record import Row, Study
from benchmarks.study.tables import chunks, perplexity_text, variant_table

MODELS_PER_TABLE = 3
FIGURE_LETTERS = 12  # as in 0.100 ±0.000


def across_models(studies: Mapping[str, Study]) -> dict[str, dict[str, Study]]:
    """By title, the studies that several models went through, each by its model's name.

    Studies come by their records' names. At least two models must share a budget.
    """
    by_title: dict[str, dict[str, Study]] = {}
    for name, study in studies.items():
        of_title = by_title.setdefault(study.study, {})
        model = study.model or name
        of_title[f"{model}, {name}" if model in of_title else model] = study
    return {
        title: of_title
        for title, of_title in by_title.items()
        if len({study.model for study in of_title.values()}) > 1 and _shared_budgets(of_title)
    }


def _shared_budgets(studies: Mapping[str, Study]) -> list[float]:
    measured = Counter(keep for study in studies.values() for keep in study.budgets)
    return sorted((keep for keep, count in measured.items() if count > 1), reverse=True)


def across_tables(studies: Mapping[str, Study]) -> list[Table]:
    """A row for each variant and a column for each model, one table or more for each budget."""
    tables = []
    for keep in _shared_budgets(studies):
        models = [model for model, study in studies.items() if keep in study.budgets]
        tables += [_table(studies, keep, group) for group in chunks(models, MODELS_PER_TABLE)]
    tables[-1].caption = _notes(studies)
    return tables


def _table(studies: Mapping[str, Study], keep: float, models: Sequence[str]) -> Table:
    title = studies[models[0]].study
    table = variant_table(f"Loss across models, nats per token: study of {title}, keep {keep:g}")
    for model in models:
        table.add_column(Text(model), justify="right", overflow="fold", max_width=FIGURE_LETTERS)
    for variant in dict.fromkeys(name for study in studies.values() for name in study.variants):
        cells = [_cell_text(studies[model].runs(variant, keep)) for model in models]
        if any(cells):
            table.add_row(Text(variant), *cells)
    return table


def _cell_text(rows: Sequence[Row]) -> str:
    """The mean over corpora and seeds, with half the range over seeds."""
    if not rows:
        return ""
    losses = [statistics.fmean(row.excess_nats.values()) for row in rows]
    spread = f" ±{(max(losses) - min(losses)) / 2:.3f}" if len(losses) > 1 else ""
    return f"{statistics.fmean(losses):.3f}{spread}"


def _notes(studies: Mapping[str, Study]) -> Text:
    dense = "; ".join(
        f"{model} "
        + ", ".join(f"{perplexity_text(p)} on {c}" for c, p in study.dense_perplexity.items())
        for model, study in studies.items()
    )
    return Text(
        "ln of the perplexity less ln of the dense model's, the mean over corpora; means over "
        f"seeds ± half their range\ndense perplexities: {dense}"
    )
