"""How many sequences fit into the memory that is left for the KV cache."""

from __future__ import annotations

from typing import Any

from grasp_deploy.bench.memory.verdict import (
    AS_PREDICTED,
    NOT_AS_PREDICTED,
    TOLERANCE,
    relative_error,
)
from grasp_deploy.stats.wording import counted, grouped, mib, names_by_outcome, span

PREDICTED_ONLY = "predicted only"
LARGEST_BLOCK_TOKENS = 128  # of vLLM's cache, which has whole blocks only: this many on a CPU


def kv_verdicts(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One verdict for each cell: the sequences that fit, against the first model and prediction.

    Beside the common keys: `memory_bytes`, `context_tokens`, `cached_tokens` and `sequences`
    (measured if they were), `gain` of the tokens against the first model (null for itself) and
    `error` of the predicted tokens (null where nothing was measured).
    """
    baseline = record["models"][0]["name"]
    dense = {
        cell["context_tokens"]: _held(cell)["cached_tokens"]
        for cell in record["cells"]
        if cell["model"] == baseline
    }
    return [_judged(cell, baseline, dense) for cell in record["cells"]]


def kv_headlines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One sentence for each model and size of the cache over all contexts."""
    return [_headline(rows) for rows in grouped(kv_verdicts(record), ("model", "memory_bytes"))]


def _headline(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    contexts = [counted(row["context_tokens"], "token") for row in rows]
    held = [counted(row["sequences"], "sequence") for row in rows]
    parts = (f"{sequences} of {tokens}" for sequences, tokens in zip(held, contexts, strict=True))
    gains = [row["gain"] for row in rows if row["gain"] is not None]
    gain = f", {span(gains, '.2f', 'x')} the tokens of {first['baseline']}" if gains else ""
    outcomes = {row["outcome"] for row in rows}
    where = names_by_outcome(rows, "context_tokens")
    sentence = f"{_memory(first['memory_bytes'])} of cache hold {' or '.join(parts)}{gain}; {where}"
    errors = [row["error"] for row in rows if row["error"] is not None]
    if errors:
        sentence += f" ({max(errors, key=abs):+.2%} at worst)"
    return {
        **{key: first[key] for key in ("benchmark", "model", "baseline")},
        "outcome": outcomes.pop() if len(outcomes) == 1 else "mixed",
        "sentence": f"{sentence}.",
    }


def _held(cell: dict[str, Any]) -> dict[str, int]:
    held: dict[str, int] = cell["measured"] or cell["predicted"]
    return held


def _judged(cell: dict[str, Any], baseline: str, dense: dict[int, int]) -> dict[str, Any]:
    held, predicted = _held(cell), cell["predicted"]["cached_tokens"]
    error = relative_error(held["cached_tokens"], predicted) if cell["measured"] else None
    outcome = PREDICTED_ONLY
    if error is not None:
        rounded = 0 <= predicted - held["cached_tokens"] < LARGEST_BLOCK_TOKENS
        outcome = AS_PREDICTED if rounded or abs(error) <= TOLERANCE else NOT_AS_PREDICTED
    dense_tokens = dense.get(cell["context_tokens"])
    gain = None
    if dense_tokens and cell["model"] != baseline:
        gain = held["cached_tokens"] / dense_tokens
    row = {
        "benchmark": "kv",
        "model": cell["model"],
        "baseline": baseline,
        "memory_bytes": cell["memory_bytes"],
        "context_tokens": cell["context_tokens"],
        **{key: held[key] for key in ("cached_tokens", "sequences")},
        "gain": gain,
        "error": error,
        "outcome": outcome,
    }
    return {**row, "sentence": _sentence(row)}


def _sentence(row: dict[str, Any]) -> str:
    memory = _memory(row["memory_bytes"])
    gain = "" if row["gain"] is None else f", {row['gain']:.2f}x the tokens of {row['baseline']}"
    text = (
        f"{row['model']}: {memory} of cache hold {counted(row['sequences'], 'sequence')} of "
        f"{counted(row['context_tokens'], 'token')}{gain}; {row['outcome']}"
    )
    return f"{text}." if row["error"] is None else f"{text} ({row['error']:+.2%})."


def _memory(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.2f} GiB" if size_bytes >= 2**30 else mib(size_bytes)
