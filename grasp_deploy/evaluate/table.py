"""The table of a comparison: a row for each model, text after text."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.checkpoint.card.model_card import MARK
from grasp_deploy.evaluate.compare import CompareRecord, LossCell
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import plus_minus

HEADS = ("model", "perplexity", "nats", "KL", "agree, %")


def compare_table(record: CompareRecord) -> Table:
    """The first model's loss, and how far the others lie from it."""
    first = record.models[0].name
    notes = [f"nats: a token; of {first} the loss, of others what they lose more"]
    if len(record.models) > 1:
        notes.append(f"KL: divergence from {first}, nats a token")
        notes.append(f"agree: share of tokens with the same most likely one as {first}")
    if any(cell.is_calibrated_on for cell in record.cells):
        notes.append(f"{MARK}: calibrated on this text or a part of it, which flatters the model")
    table = figure_table("", HEADS, [*notes, "±: one standard error"], fold=False)
    for cells in record.texts:
        of = f"{cells[0].text}: {cells[0].tokens:,} tokens"
        table.add_row(Text(of, "bold"))
        for cell in cells:
            nats = plus_minus(cell.loss_nats_per_token, cell.standard_error, ".3f")
            others = _distances(cell) if cell is not cells[0] else (nats, "", "")
            name = Text(cell.model + MARK * cell.is_calibrated_on)
            table.add_row(name, _shown(cell.perplexity), *others)
        table.add_section()
    return table


def _distances(cell: LossCell) -> tuple[str, str, str]:
    """What a model loses above the first, its divergence and its agreement, where known."""
    lost = plus_minus(cell.excess_nats or 0, cell.excess_error, ".3f", "+")
    if cell.divergence is None or cell.agreement is None:
        return lost, "", ""
    return lost, f"{cell.divergence:.3f}", f"{100 * cell.agreement:.1f}"


def _shown(perplexity: float) -> str:
    return f"{perplexity:,.3f}" if perplexity < 1000 else f"{perplexity:.4g}"


def answer_tables(record: CompareRecord) -> list[Table]:
    """What each model says to the same prompts; nothing in an older record."""
    if not record.said:
        return []
    table = figure_table("By their most likely tokens", ("model", "answer"))
    table.columns[1].justify = "left"
    for said in record.said:
        table.add_row(Text(said.prompt, "bold"))
        for model, answer in zip(record.models, said.answers, strict=True):
            table.add_row(Text(model.name), Text(answer))
        table.add_section()
    return [table]
