"""The rich table of a KV cache record."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.kv.record import Cell, KvRecord
from grasp_deploy.bench.table_cells import change
from grasp_deploy.engine.offline import KvCapacity

MIB = 2**20


def kv_table(record: KvRecord) -> Table:
    """Tokens and full sequences that fit beside the weights: predicted, measured, change."""
    memory = f"{record.settings.memory_bytes / MIB:,.0f} MiB"
    context = f"{record.dense.context_tokens:,} tokens"
    measured = any(cell.measured for cell in record.cells)
    table = Table(
        title=f"KV cache beside the weights in {memory}; sequences of {context}",
        title_justify="left",
        caption=None if measured else "predicted only: no vLLM was asked",
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("KV bytes\nper token", justify="right", no_wrap=True)
    table.add_column("in one layer", justify="right", overflow="fold")
    table.add_column("cache,\nMiB", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for head in ("tokens", "sequences"):
        table.add_column(head, justify="right", no_wrap=True)
    for cell in record.cells:
        _add_rows(table, cell, record.dense)
        table.add_section()
    return table


def _add_rows(table: Table, cell: Cell, dense: Cell) -> None:
    figures = (
        f"{cell.kv_bytes_per_token:,}",
        _range(cell.layer_kv_bytes_per_token),
        f"{cell.memory_bytes / MIB:,.1f}",
    )
    table.add_row(Text(cell.model), *figures, "predicted", *_held(cell.predicted))
    if cell.measured:
        table.add_row("", "", "", "", "vLLM", *_held(cell.measured))
    if cell is not dense:
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


def _range(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"
