"""The table of a family: a row for each budget."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.compression.family.record import FamilyRecord
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import plus_minus

HEADS = ("model", "keep", "weights,\nMiB", "KV bytes\nper token", "held-out\nloss", "excess,\nnats")


def family_table(record: FamilyRecord) -> Table:
    """Keep, sizes and held-out loss of the dense model and of each member."""
    notes = ["loss in nats per token on held-out calibration text; ±: one standard error"]
    table = figure_table("Family of budgets", HEADS, notes, fold=False)
    dense, *pruned = record.models
    rows = [(dense, "", record.dense_loss, "")]
    for model, member in zip(pruned, record.members, strict=True):
        excess = "" if member.excess is None else _excess(member.excess, member.excess_error)
        rows.append((model, f"{member.keep:g}", member.heldout_loss, excess))
    for model, keep, loss, excess in rows:
        size = model.footprint
        figures = f"{size.weight_bytes / 2**20:,.2f}", f"{size.kv_bytes_per_token:,}"
        shown = "" if loss is None else f"{loss:.3f}"
        table.add_row(Text(model.name), keep, *figures, shown, excess)
    return table


def _excess(nats: float, error: float | None) -> str:
    return plus_minus(nats, error, ".3f", "+")
