"""The tables of a quality card in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.checkpoint.card.model_card import (
    ERRORS_ARE,
    TASK_HEAD,
    corpus_cells,
    mark_means,
    task_cells,
)

# Of a card's Markdown the two wide columns in few words, so that a row fits 80 columns.
CORPUS_HEAD = ("perplexity on", "tokens", "dense", "pruned", "nats lost")


def card_tables(quality: Mapping[str, Any]) -> list[Table]:
    """Perplexity by corpus, and accuracy by task where there is one; dense beside pruned."""
    corpora, tasks = quality["corpora"], quality["tasks"]
    marked = any(row["calibrated_on"] for row in corpora)
    notes = [mark_means(quality), ERRORS_ARE] if marked else [ERRORS_ARE]
    tables = [_table(CORPUS_HEAD, [_narrow_cells(row) for row in corpora], "\n".join(notes))]
    if tasks:
        tables.append(_table(TASK_HEAD, [task_cells(row) for row in tasks]))
    return tables


def _narrow_cells(row: Mapping[str, Any]) -> list[str]:
    name, _, *figures = corpus_cells(row)
    return [name, f"{row['tokens']:,} ({row['sequence_length']:,} each)", *figures]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    table = Table(caption=caption or None, caption_justify="left")
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
