"""The table of mask stability: how much a mask still changes while gates are learnt."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.report.record_shape import wrong

STABILITY = {"rows": [{"variant": str, "ffn_survival": [float], "kv_survival": [float]}]}
KINDS = {"FFN": "ffn_survival", "KV": "kv_survival"}
Record = Mapping[str, Any]


def wrong_stability(record: Record) -> str:
    """What is missing or of another shape; empty if nothing is."""
    found = wrong(record, STABILITY, "it")
    if found:
        return found
    for index, row in enumerate(record["rows"]):
        for key in KINDS.values():
            if len(row[key]) < 2:
                return f"rows[{index}].{key} has fewer than two snapshots"
    return ""


def stability_table(record: Record) -> Table:
    """The mean over the first half and over the second half of learning, in percent."""
    table = Table(title="Units whose state survives to the next snapshot, %", title_justify="left")
    table.add_column("gates", overflow="fold")
    for kind in KINDS:
        for half in ("1st half", "2nd half"):
            table.add_column(f"{kind}, {half}", justify="right")
    for row in record["rows"]:
        halves = []
        for shares in (row[key] for key in KINDS.values()):
            middle = len(shares) // 2
            halves += [shares[:middle], shares[middle:]]
        cells = (f"{100 * statistics.fmean(half):.2f}" for half in halves)
        table.add_row(Text(row["variant"]), *cells)
    return table
