"""Memory against its prediction, and the peak of a smaller model against the first model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grasp_deploy.bench.memory.record import Cell, MemoryRecord
from grasp_deploy.bench.record import AS_PREDICTED, prediction_outcome, relative_error
from grasp_deploy.stats.wording import common_outcome, grouped, points_by_outcome, span

PEAK_TOLERANCE = 0.1  # activations depend on kernels, of which config.json says nothing
PEAK_NOT_AS_PREDICTED = "peak not as predicted"


def verdicts(record: MemoryRecord) -> list[dict[str, Any]]:
    """One JSON row for each cell; `error` is the larger one of weights and KV cache.

    `change` is that of the peak against the first model, None for the first model itself.
    """
    return [_verdict(record, cell, record.dense_cell(cell)) for cell in record.cells]


def _verdict(record: MemoryRecord, cell: Cell, dense: Cell | None) -> dict[str, Any]:
    measured, predicted = cell.measured, cell.predicted
    weights_error = relative_error(measured.weight_bytes, predicted.weight_bytes)
    error = max(weights_error, relative_error(measured.kv_bytes, predicted.kv_bytes), key=abs)
    peak_error = relative_error(measured.peak_bytes, predicted.peak_bytes)
    outcome = prediction_outcome(error)
    if outcome == AS_PREDICTED and abs(peak_error) > PEAK_TOLERANCE:
        outcome = PEAK_NOT_AS_PREDICTED
    return record.line(
        cell.model,
        prompt_tokens=cell.prompt_tokens,
        batch=cell.batch,
        peak_bytes=measured.peak_bytes,
        change=measured.peak_bytes / dense.measured.peak_bytes - 1 if dense else None,
        error=error,
        peak_error=peak_error,
        outcome=outcome,
    )


def headlines(record: MemoryRecord) -> list[dict[str, Any]]:
    """One sentence for each model over all its points."""
    return [
        record.line(
            rows[0]["model"],
            outcome=common_outcome(row["outcome"] for row in rows),
            sentence=_sentence(rows),
        )
        for rows in grouped(verdicts(record), lambda row: row["model"])
    ]


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    peaks = span([row["peak_bytes"] / 2**20 for row in rows], ",.1f", " MiB")
    changes = [row["change"] for row in rows if row["change"] is not None]
    against = f" ({span(changes, '+.1%')} against {rows[0]['baseline']})" if changes else ""
    exact = points_by_outcome([(prediction_outcome(r["error"]), r["prompt_tokens"]) for r in rows])
    error, peak_error = (max((r[key] for r in rows), key=abs) for key in ("error", "peak_error"))
    worst = f"{error:+.2%} at worst" if error else "equal"
    points = f"{len(rows)} point{'s' * (len(rows) > 1)}"
    return (
        f"prefill peak {peaks}{against}, over {points}; weights and KV cache {exact} "
        f"({worst}); the peak at most {peak_error:+.1%} from its prediction."
    )
