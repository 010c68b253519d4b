"""The table of perplexities: a row for each model."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.evaluate.losses.record import PerplexityRecord
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import plus_minus


def perplexity_table(record: PerplexityRecord) -> Table:
    """Size, perplexity with its interval, bits per byte, and the nats lost against the first."""
    documents = record.cells[0].mean_over_documents is not None
    heads = ["model", "weights,\nMiB", "perplexity", "95 %", "bits per\nbyte"]
    heads += [*(["documents\nalike"] if documents else []), "nats lost"]
    notes = [f"counted: {record.cells[0].tokens_counted}"]
    if documents:
        notes.append("documents alike: each counted once, however long")
    if len(record.cells) > 1:
        notes.append(f"nats lost: a token, against {record.models[0].name}; ±: one standard error")
    table = figure_table(f"Perplexity on {record.text}", heads, notes, fold=False)
    for model, cell in zip(record.models, record.cells, strict=True):
        mean = (cell.mean_over_documents or {}).get("perplexity")
        lost = cell.excess_nats
        table.add_row(
            Text(model.name),
            f"{model.footprint.weight_bytes / 2**20:,.2f}",
            _shown(cell.perplexity, 3),
            "-".join(_shown(end, 2) for end in cell.perplexity_interval or ()),
            "" if cell.bits_per_byte is None else f"{cell.bits_per_byte:.4f}",
            *([] if mean is None else [_shown(mean, 3)]),
            "" if lost is None else plus_minus(lost, cell.excess_error, ".3f", "+"),
        )
    return table


def _shown(perplexity: float, digits: int) -> str:
    return f"{perplexity:,.{digits}f}" if perplexity < 1000 else f"{perplexity:.4g}"
