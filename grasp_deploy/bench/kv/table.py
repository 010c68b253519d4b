"""The rich table of a KV cache record."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.kv.record import Cell, KvRecord
from grasp_deploy.bench.table import change, mebibytes, new_table
from grasp_deploy.engine.offline import KvCapacity
from grasp_deploy.stats.wording import span

HEADS = ("model", "KV bytes\nper token", "in one\nlayer", "cache,\nMiB", "", "tokens", "sequences")


def kv_table(record: KvRecord) -> Table:
    """Tokens and full sequences that fit beside the weights: predicted, measured, change."""
    measured = any(cell.measured for cell in record.cells)
    table = new_table(
        f"KV cache beside the weights in {record.settings.memory_bytes / 2**20:,.0f} MiB; "
        f"sequences of {record.cells[0].context_tokens:,} tokens",
        HEADS,
        caption=None if measured else "predicted only: no vLLM was asked",
    )
    for cell in record.cells:
        _add_rows(table, cell, record.dense_cell(cell))
        table.add_section()
    return table


def _add_rows(table: Table, cell: Cell, dense: Cell | None) -> None:
    figures = (
        f"{cell.kv_bytes_per_token:,}",
        span(cell.layer_kv_bytes_per_token, ",").replace(" to ", " to\n"),
        mebibytes(cell.memory_bytes),
    )
    table.add_row(Text(cell.model), *figures, "predicted", *_held(cell.predicted))
    if cell.measured:
        table.add_row("", "", "", "", "vLLM", *_held(cell.measured))
    if dense:
        table.add_row(
            "",
            change(cell.kv_bytes_per_token, dense.kv_bytes_per_token),
            "",
            change(cell.memory_bytes, dense.memory_bytes),
            "change",
            change(cell.held.cached_tokens, dense.held.cached_tokens),
            change(cell.held.sequences, dense.held.sequences),
        )


def _held(capacity: KvCapacity) -> tuple[str, str]:
    return f"{capacity.cached_tokens:,}", f"{capacity.sequences:,}"
