"""The rich table of a memory record."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.memory.record import MemoryRecord, Sizes
from grasp_deploy.bench.table import change, mebibytes, new_table
from grasp_deploy.stats.wording import grouped

HEADS = ("tokens", "model", "", "weights", "KV cache", "other", "peak")


def memory_table(record: MemoryRecord) -> Table:
    """Weights, KV cache, the rest and the peak of each prefill: predicted, measured, change.

    The change is that of the measured figure against the first model's at the same length.
    """
    title = f"Memory of a prefill of {record.settings.batch:,} prompts, MiB"
    caption = "other = peak - weights - KV cache; change: of the measured figures"
    table = new_table(title, HEADS, caption)
    for cells in grouped(record.cells, lambda cell: cell.prompt_tokens):
        for cell in cells:
            predicted, measured = _parts(cell.predicted), _parts(cell.measured)
            name = f"{cell.prompt_tokens:,}", Text(cell.model)
            table.add_row(*name, "predicted", *map(mebibytes, predicted))
            table.add_row("", "", "measured", *map(mebibytes, measured))
            if dense := record.dense_cell(cell):
                table.add_row("", "", "change", *map(change, measured, _parts(dense.measured)))
        table.add_section()
    return table


def _parts(sizes: Sizes) -> tuple[int, int, int, int]:
    return sizes.weight_bytes, sizes.kv_bytes, sizes.other_bytes, sizes.peak_bytes
