"""The table of perplexities: a row for each model."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.evaluate.losses.record import PerplexityRecord
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import plus_minus


def perplexity_table(record: PerplexityRecord) -> Table:
    """Size, perplexity with its interval, and the nats lost against the first model.

    A model alone has its bits per byte instead, which compare with models of other tokens.
    """
    first, alone = record.cells[0], len(record.cells) == 1
    notes, documents = [f"counted: {first.tokens_counted}"], first.mean_over_documents is not None
    if documents:
        notes.append("documents alike: each counted once, however long")
    if not alone:
        notes.append(f"nats lost: a token, against {record.models[0].name}; ±: one standard error")
    if record.flattered:
        notes.append(record.flattered)
    heads = ["model", "MiB", "perplexity", "95 %", *(["documents\nalike"] if documents else [])]
    heads.append("bits per\nbyte" if alone else "nats lost")
    table = figure_table(f"Perplexity on {record.text}", heads, notes, fold=False)
    for model, cell in zip(record.models, record.cells, strict=True):
        mean, lost = cell.mean_over_documents, cell.excess_nats
        last = "" if lost is None else plus_minus(lost, cell.excess_error, ".3f", "+")
        if alone and cell.bits_per_byte is not None:
            last = f"{cell.bits_per_byte:.4f}"
        table.add_row(
            Text(model.name),
            f"{model.footprint.weight_bytes / 2**20:,.2f}",
            _shown(cell.perplexity, 3),
            "-".join(_shown(end, 2) for end in cell.perplexity_interval or ()),
            *([] if mean is None else [_shown(mean.perplexity, 3)]),
            last,
        )
    return table


def _shown(perplexity: float, digits: int) -> str:
    return f"{perplexity:,.{digits}f}" if perplexity < 1000 else f"{perplexity:.4g}"
