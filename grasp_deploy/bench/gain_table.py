"""The table of speed against the first model, point by point."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.throughput.verdict import QUANTITIES, SETTING
from grasp_deploy.bench.verdicts import verdicts
from grasp_deploy.stats.noise import NO_DIFFERENCE, UNDECIDED
from grasp_deploy.stats.wording import grouped

Row = dict[str, Any]
SHORT_OUTCOMES = {NO_DIFFERENCE: "within noise", UNDECIDED: "undecided"}


def gain_table(record: Row) -> Table:
    """Ratios to the first model, their intervals and the ideal, point by point."""
    title = "Speed against the first model"
    table = Table(title=title, title_justify="left")
    table.add_column("model and batch", overflow="fold")
    for head in ("ratio", "interval", "ideal", "of ideal"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    judged = verdicts(record)
    settings = grouped(judged, SETTING)
    for of_model in grouped(judged, ("model",)):
        for rows in grouped(of_model, (*SETTING, "quantity")):
            what = QUANTITIES[rows[0]["quantity"]]
            if len(settings) > 1:
                what += f" ({_setting(rows[0])})"
            table.add_row(Text(f"{rows[0]['model']}: {what}", style="bold"))
            for row in rows:
                table.add_row(f"batch {row['batch']:,}", *_gain_cells(row))
            table.add_section()
    return table


def _setting(row: Row) -> str:
    return f"{row['engine']}, {row['prompt_tokens']:,} + {row['new_tokens']:,} tokens"


def _gain_cells(row: Row) -> list[str]:
    interval, sure = row["interval"], row["outcome"] not in SHORT_OUTCOMES
    share = row["share_of_ideal"] if sure else None  # that of noise says nothing
    return [
        f"{row['ratio']:.2f}x",
        f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "",
        f"{row['ideal']:.2f}x" if row["ideal"] else "",
        f"{share:.0%}" if share is not None else "",
        str(SHORT_OUTCOMES.get(row["outcome"], row["outcome"])),
    ]
