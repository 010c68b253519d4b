"""The rich table of a memory record."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.memory.record import Cell, MemoryRecord, Sizes
from grasp_deploy.bench.table_cells import change
from grasp_deploy.stats.wording import counted, grouped


def memory_table(record: MemoryRecord) -> Table:
    """Weights, KV cache, the rest and the peak of each prefill: predicted, measured, change.

    The change is that of the measured figure against the first model's at the same length.
    """
    table = Table(
        title=f"Memory of a prefill of {counted(record.settings.batch, 'prompt')}, MiB",
        title_justify="left",
        caption="other = peak - weights - KV cache; change: of the measured figures",
        caption_justify="left",
    )
    table.add_column("tokens", justify="right")
    table.add_column("model", overflow="fold")
    table.add_column("", no_wrap=True)
    for head in ("weights", "KV cache", "other", "peak"):
        table.add_column(head, justify="right", no_wrap=True)
    for cells in grouped(record.cells, lambda cell: cell.prompt_tokens):
        for cell in cells:
            _add_rows(table, cell, record.dense_cell(cell))
        table.add_section()
    return table


def _add_rows(table: Table, cell: Cell, dense: Cell | None) -> None:
    predicted, measured = _parts(cell.predicted), _parts(cell.measured)
    tokens = f"{cell.prompt_tokens:,}"
    table.add_row(tokens, Text(cell.model), "predicted", *map(_mib, predicted))
    table.add_row("", "", "measured", *map(_mib, measured))
    if dense:
        table.add_row("", "", "change", *map(change, measured, _parts(dense.measured)))


def _parts(sizes: Sizes) -> tuple[int, int, int, int]:
    return sizes.weight_bytes, sizes.kv_bytes, sizes.other_bytes, sizes.peak_bytes


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f}"
