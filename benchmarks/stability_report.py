"""The record of `mask_stability` and its table: how much a mask changes while gates are learnt."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from rich.table import Table
from rich.text import Text

from grasp_deploy.files.json_files import typed

# Shares of units whose state is the same in a snapshot and in the next one.
Survival = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=2)]


class Row(Struct):
    """One way to learn gates."""

    variant: str
    ffn_survival: Survival
    kv_survival: Survival


class Stability(Struct):
    """The figures of a record of `mask_stability`."""

    rows: Annotated[list[Row], Meta(min_length=1)]


def stability_of(record: dict[str, Any], path: Path) -> Stability:
    """The shares that a record holds; InputError names the file and what is wrong in it."""
    return typed(record, Stability, path, "run `python -m benchmarks.mask_stability` again")


def stability_table(stability: Stability) -> Table:
    """The mean over the first half and over the second half of learning, in percent."""
    table = Table(title="Units whose state survives to the next snapshot, %", title_justify="left")
    table.add_column("gates", overflow="fold")
    for kind in ("FFN", "KV"):
        for half in ("1st half", "2nd half"):
            table.add_column(f"{kind}, {half}", justify="right")
    for row in stability.rows:
        table.add_row(Text(row.variant), *_halves(row.ffn_survival), *_halves(row.kv_survival))
    return table


def _halves(shares: list[float]) -> list[str]:
    middle = len(shares) // 2
    return [f"{100 * statistics.fmean(half):.2f}" for half in (shares[:middle], shares[middle:])]
