"""Sequences that fit into the memory left for the KV cache, against prediction and first model."""

from __future__ import annotations

from typing import Any

from grasp_deploy.bench.kv.record import Cell, KvRecord
from grasp_deploy.bench.record import AS_PREDICTED, prediction_outcome, relative_error
from grasp_deploy.files.sizes import format_bytes

PREDICTED_ONLY = "predicted only"
LARGEST_BLOCK_TOKENS = 128  # of vLLM's cache, which has whole blocks only: this many on a CPU


def verdicts(record: KvRecord) -> list[dict[str, Any]]:
    """One JSON row for each model.

    `cached_tokens` and `sequences` are measured if vLLM was asked, else predicted. `gain` is the
    ratio of cached tokens to the first model's, None for the first model itself. `error` is that of
    the predicted tokens, None where nothing was measured.
    """
    return [_verdict(record, cell, record.dense_cell(cell)) for cell in record.cells]


def _verdict(record: KvRecord, cell: Cell, dense: Cell | None) -> dict[str, Any]:
    tokens, predicted = cell.held.cached_tokens, cell.predicted.cached_tokens
    error = relative_error(tokens, predicted) if cell.measured else None
    outcome = PREDICTED_ONLY if error is None else prediction_outcome(error)
    if cell.measured and 0 <= predicted - tokens < LARGEST_BLOCK_TOKENS:
        outcome = AS_PREDICTED
    return record.line(
        cell.model,
        memory_bytes=cell.memory_bytes,
        context_tokens=cell.context_tokens,
        cached_tokens=tokens,
        sequences=cell.held.sequences,
        gain=tokens / dense.held.cached_tokens if dense else None,
        error=error,
        outcome=outcome,
    )


def headlines(record: KvRecord) -> list[dict[str, Any]]:
    """One sentence for each model."""
    return [
        record.line(row["model"], outcome=row["outcome"], sentence=_sentence(row))
        for row in verdicts(record)
    ]


def _sentence(row: dict[str, Any]) -> str:
    more = f", {row['gain']:.2f}x the tokens of {row['baseline']}" if row["gain"] else ""
    off = f" ({row['error']:+.2%})" if row["error"] is not None else ""
    return (
        f"{format_bytes(row['memory_bytes'])} of cache hold {row['sequences']:,} sequences of "
        f"{row['context_tokens']:,} tokens{more}; {row['outcome']}{off}."
    )
