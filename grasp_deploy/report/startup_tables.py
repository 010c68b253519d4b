"""The table of a record of starts: how long a server takes to answer, cold and warm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text


def startup_table(record: Mapping[str, Any]) -> Table:
    """Median seconds with half their range, and the change against the first model."""
    shapes = {m["name"]: m["footprint"]["distinct_shapes"] for m in record["models"]}
    first = record["cells"][0]
    table = Table(
        title="Seconds until a server answers",
        title_justify="left",
        caption="± half the range of the repetitions; Δ: change against the first model",
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("layer shapes", justify="right")
    for start in ("cold", "warm"):
        table.add_column(start, justify="right", no_wrap=True)
        table.add_column("Δ", justify="right", no_wrap=True)
    for cell in record["cells"]:
        figures = []
        for start in ("cold_seconds", "warm_seconds"):
            samples, median = cell[start]["samples"], cell[start]["median"]
            figures.append(f"{median:.1f} ±{(max(samples) - min(samples)) / 2:.1f}")
            change = median / first[start]["median"] - 1
            figures.append("" if cell is first else f"{change:+.1%}")
        table.add_row(Text(cell["model"]), f"{shapes[cell['model']]:,}", *figures)
    return table
