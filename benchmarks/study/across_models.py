"""One study on several models: the losses of each way of compressing side by side."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from benchmarks.study.record import Row, Study
from benchmarks.study.tables import chunks, perplexity_text, variant_table

MODELS_PER_TABLE = 3
FIGURE_LETTERS = 12  # as in 0.100 ±0.000


class Cell(Struct):
    """The loss of a variant on a model, above the dense model's in nats per token.

    The mean over the model's corpora and over seeds, with half the range over seeds.
    """

    variant: str
    keep: float
    model: str
    excess_nats: float
    half_range: float
    seeds: int


class Model(Struct):
    """A model that a study was run on, and the name of its record."""

    name: str
    record: str
    dense_perplexity: dict[str, float]


class AcrossModels(Struct):
    """A study of at least two models, under the budgets that two of them share."""

    study: str
    models: list[Model]
    cells: list[Cell]


def across_models(studies: Mapping[str, Study]) -> list[AcrossModels]:
    """Combine studies, keyed by their records' names, that several models went through."""
    by_study: dict[str, dict[str, Study]] = {}
    for name, study in studies.items():
        by_study.setdefault(study.study, {})[name] = study
    combined = []
    for title, records in by_study.items():
        different = {study.model or name for name, study in records.items()}
        models = _model_names(records)
        cells = _cells({model: records[name] for model, name in models.items()})
        if len(different) > 1 and cells:
            listed = [Model(m, name, records[name].dense_perplexity) for m, name in models.items()]
            combined.append(AcrossModels(title, listed, cells))
    return combined


def _model_names(records: Mapping[str, Study]) -> dict[str, str]:
    """Record names by model names; the second model of one name gets a number."""
    names: dict[str, str] = {}
    seen = Counter[str]()
    for record, study in records.items():
        model = study.model or record
        seen[model] += 1
        names[f"{model}#{seen[model]}" if seen[model] > 1 else model] = record
    return names


def _cells(studies: Mapping[str, Study]) -> list[Cell]:
    measured = Counter(keep for study in studies.values() for keep in study.budgets)
    shared = sorted((keep for keep, count in measured.items() if count > 1), reverse=True)
    variants = dict.fromkeys(name for study in studies.values() for name in study.variants)
    return [
        _cell(variant, keep, model, rows)
        for variant in variants
        for keep in shared
        for model, study in studies.items()
        if (rows := study.runs(variant, keep))
    ]


def _cell(variant: str, keep: float, model: str, rows: Sequence[Row]) -> Cell:
    losses = [statistics.fmean(row.excess_nats.values()) for row in rows]
    half_range = (max(losses) - min(losses)) / 2
    return Cell(variant, keep, model, statistics.fmean(losses), half_range, len(losses))


def across_tables(across: AcrossModels) -> list[Table]:
    """A row for each variant and a column for each model, one table or more for each budget."""
    tables = []
    for keep in sorted({cell.keep for cell in across.cells}, reverse=True):
        measured = {cell.model for cell in across.cells if cell.keep == keep}
        models = [model.name for model in across.models if model.name in measured]
        tables += [_table(across, keep, group) for group in chunks(models, MODELS_PER_TABLE)]
    tables[-1].caption = _notes(across)
    return tables


def _table(across: AcrossModels, keep: float, models: Sequence[str]) -> Table:
    title = f"Loss across models, nats per token: study of {across.study}, keep {keep:g}"
    table = variant_table(title)
    for model in models:
        table.add_column(Text(model), justify="right", overflow="fold", max_width=FIGURE_LETTERS)
    cells = {(cell.variant, cell.model): cell for cell in across.cells if cell.keep == keep}
    for variant in dict.fromkeys(cell.variant for cell in across.cells):
        row = [cells.get((variant, model)) for model in models]
        if any(row):
            table.add_row(Text(variant), *map(_cell_text, row))
    return table


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    spread = f" ±{cell.half_range:.3f}" if cell.seeds > 1 else ""
    return f"{cell.excess_nats:.3f}{spread}"


def _notes(across: AcrossModels) -> Text:
    notes = ["ln of the perplexity less ln of the dense model's"]
    if any(len(model.dense_perplexity) > 1 for model in across.models):
        notes.append("the mean over corpora where a model has several")
    if any(cell.seeds > 1 for cell in across.cells):
        notes.append("means over seeds ± half their range")
    dense = "; ".join(
        f"{model.name} "
        + ", ".join(f"{perplexity_text(p)} on {c}" for c, p in model.dense_perplexity.items())
        for model in across.models
    )
    return Text(f"{'; '.join(notes)}\ndense perplexities: {dense}")
