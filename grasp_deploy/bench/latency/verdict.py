"""What a table says: the fixed share of the time, the largest speedup, the line's error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from grasp_deploy.bench.latency.record import LatencyRecord
from grasp_deploy.compression.latency_table import KIND, PHASES
from grasp_deploy.stats.wording import grouped, span

Row = dict[str, Any]


def verdicts(record: LatencyRecord) -> list[Row]:
    """One JSON row for each phase, batch and context.

    Shares are of the dense model's time. `largest_speedup` is that of a model whose layers keep a
    tile of FFN channels and one KV group each; None where noise leaves no price.
    """
    layer, rows = record.dense.footprint.layers[0], []
    points = dict.fromkeys((cell.batch, cell.context) for cell in record.cells)
    for phase, (batch, context) in product(PHASES, points):
        price = record.price(batch, context, phase)
        tile = record.settings.tile / layer.intermediate_size
        least = price.seconds(tile, 1 / layer.num_key_value_heads)
        rows.append(
            {
                "benchmark": KIND,
                "model": record.dense.name,
                "phase": phase,
                "batch": batch,
                "context": context,
                "dense_seconds": price.dense_seconds,
                "fixed_share": price.fixed_seconds / price.dense_seconds,
                "ffn_share": price.ffn_seconds / price.dense_seconds,
                "kv_share": price.kv_seconds / price.dense_seconds,
                "largest_speedup": price.dense_seconds / least if price.has_price else None,
                "largest_error": price.largest_error,
                "outcome": "priced" if price.has_price else "no price",
            }
        )
    return rows


def headlines(record: LatencyRecord) -> list[Row]:
    """One sentence for each phase."""
    lines = []
    for rows in grouped(verdicts(record), lambda row: row["phase"]):
        priced = [row for row in rows if row["outcome"] == "priced"]
        sentences = [_sentence(priced)] if priced else []
        if len(priced) < len(rows):
            sentences.append(
                f"too noisy for a price at {len(rows) - len(priced)} of {len(rows)} points: "
                "measure again, with more repetitions"
            )
        sentence = f"{rows[0]['phase']}: {'; '.join(sentences)}."
        shared = {key: rows[0][key] for key in ("benchmark", "model", "phase", "outcome")}
        lines.append({**shared, "sentence": sentence})
    return lines


def _sentence(rows: Sequence[Row]) -> str:
    fixed = span([row["fixed_share"] for row in rows], ".0%")
    most = span([row["largest_speedup"] for row in rows], ".2f", "x")
    errors = span([row["largest_error"] for row in rows], ".0%")
    return (
        f"{fixed} of the time is fixed, so that no pruning makes it more than {most} as fast; the "
        f"price of a unit misses measured shapes by at most {errors}"
    )
