"""Sequences that fit into the memory left for the KV cache, against prediction and first model."""

from __future__ import annotations

from typing import Any

from grasp_deploy.bench.kv.record import Cell, KvRecord
from grasp_deploy.bench.prediction import AS_PREDICTED, prediction_outcome, relative_error
from grasp_deploy.stats.wording import counted, memory_size

PREDICTED_ONLY = "predicted only"
LARGEST_BLOCK_TOKENS = 128  # of vLLM's cache, which has whole blocks only: this many on a CPU


def kv_verdicts(record: KvRecord) -> list[dict[str, Any]]:
    """One JSON row for each model.

    `cached_tokens` and `sequences` are measured if vLLM was asked, else predicted. `gain` is the
    ratio of cached tokens to the first model's, None for the first model itself. `error` is that of
    the predicted tokens, None where nothing was measured.
    """
    return [
        {
            "benchmark": "kv",
            "model": cell.model,
            "baseline": record.baseline,
            "memory_bytes": cell.memory_bytes,
            "context_tokens": cell.context_tokens,
            "cached_tokens": cell.held.cached_tokens,
            "sequences": cell.held.sequences,
            "gain": _gain(record, cell),
            "error": _error(cell),
            "outcome": _outcome(cell),
        }
        for cell in record.cells
    ]


def kv_headlines(record: KvRecord) -> list[dict[str, Any]]:
    """One sentence for each model."""
    return [_headline(record, cell) for cell in record.cells]


def _headline(record: KvRecord, cell: Cell) -> dict[str, Any]:
    sequences = counted(cell.held.sequences, "sequence")
    tokens = counted(cell.context_tokens, "token")
    gain, error = _gain(record, cell), _error(cell)
    more = f", {gain:.2f}x the tokens of {record.baseline}" if gain else ""
    off = f" ({error:+.2%})" if error is not None else ""
    return {
        "benchmark": "kv",
        "model": cell.model,
        "baseline": record.baseline,
        "outcome": _outcome(cell),
        "sentence": f"{memory_size(cell.memory_bytes)} of cache hold {sequences} of {tokens}"
        f"{more}; {_outcome(cell)}{off}.",
    }


def _gain(record: KvRecord, cell: Cell) -> float | None:
    dense_tokens = record.dense.held.cached_tokens
    if cell is record.dense or not dense_tokens:
        return None
    return cell.held.cached_tokens / dense_tokens


def _error(cell: Cell) -> float | None:
    if cell.measured is None:
        return None
    return relative_error(cell.measured.cached_tokens, cell.predicted.cached_tokens)


def _outcome(cell: Cell) -> str:
    error = _error(cell)
    if error is None:
        return PREDICTED_ONLY
    missing = cell.predicted.cached_tokens - cell.held.cached_tokens
    return AS_PREDICTED if 0 <= missing < LARGEST_BLOCK_TOKENS else prediction_outcome(error)
