"""Rich tables of measured times: shape by shape, and the prices that follow from them."""

from __future__ import annotations

import statistics

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.latency.record import LatencyRecord
from grasp_deploy.bench.latency.verdict import verdicts
from grasp_deploy.bench.table import milliseconds, new_table
from grasp_deploy.stats.wording import grouped

CAPTION = (
    "of dense: median and half the range of the paired repetitions; a layer saves the difference "
    "of both models over the number of layers"
)


def shape_table(record: LatencyRecord, phase: str) -> Table:
    """Times of every measured shape in one phase, beside the dense model's."""
    heads = ("model: FFN x KV", "ms", "of dense", "a layer saves, µs")
    engine, layers = record.settings.engine, len(record.dense.footprint.layers)
    table = new_table(f"Times of {phase}: {engine}, {record.dense.name}", heads, CAPTION)
    for points in grouped(record.cells, lambda cell: (cell.batch, cell.context)):
        batch, context = points[0].batch, points[0].context
        dense = record.dense_seconds(batch, context, phase)
        table.add_row(_point(batch, context), milliseconds(dense))
        for point in points:
            shares = point.shares_of_dense(phase)
            middle, half = statistics.median(shares), (max(shares) - min(shares)) / 2
            table.add_row(
                f"{point.ffn_channels:,} x {point.kv_groups}",
                milliseconds(dense * middle),
                f"{middle:.1%} ±{half:.1%}",
                f"{1e6 * dense * (1 - middle) / layers:,.1f}",
            )
        table.add_section()
    return table


def price_table(record: LatencyRecord) -> Table:
    """The fixed part, both prices, the largest speedup and the error, for every phase and point."""
    heads = ("model at", "dense, ms", "fixed", "FFN", "KV", "at most", "error")
    table = new_table("The price of a unit: a line through these times", heads)
    for rows in grouped(verdicts(record), lambda row: row["phase"]):
        table.add_row(Text(rows[0]["phase"], style="bold"))
        for row in rows:
            most = row["largest_speedup"]
            table.add_row(
                _point(row["batch"], row["context"]),
                milliseconds(row["dense_seconds"]),
                *(f"{row[f'{name}_share']:.1%}" for name in ("fixed", "ffn", "kv")),
                f"{most:.2f}x" if most else "",
                f"{row['largest_error']:.1%}",
            )
        table.add_section()
    return table


def _point(batch: int, context: int) -> str:
    return f"batch {batch:,}, context {context:,}"
