"""Whether memory is what was predicted, and how much less a smaller model takes."""

from __future__ import annotations

from typing import Any

from grasp_deploy.stats.wording import counted, grouped, mib, names_by_outcome, span

TOLERANCE = 0.005  # of weights and KV cache; activations are another matter, and shown as they are
PEAK_TOLERANCE = 0.1  # of the peak: activations depend on kernels that no config.json tells of
AS_PREDICTED, NOT_AS_PREDICTED = "as predicted", "not as predicted"
PEAK_NOT_AS_PREDICTED = "peak not as predicted"
EXACT = ("weight_bytes", "kv_bytes")


def relative_error(measured: float, predicted: float) -> float:
    """How far a measured size is from the predicted one; negative if it is smaller."""
    if predicted == measured:
        return 0.0
    return measured / predicted - 1 if predicted else float("inf")


def memory_verdicts(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One verdict for each cell: prediction against measurement, and the change of the peak.

    Beside the common keys: `prompt_tokens`, `batch`, `peak_bytes`, `change` of the peak against the
    first model (null for itself), `error` of weights and KV cache, whichever is further from its
    prediction, and `peak_error`.
    """
    baseline = record["models"][0]["name"]
    peaks = {
        (cell["prompt_tokens"], cell["batch"]): cell["measured"]["peak_bytes"]
        for cell in record["cells"]
        if cell["model"] == baseline
    }
    return [_judged(cell, baseline, peaks) for cell in record["cells"]]


def memory_headlines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One sentence for each model over all its points."""
    return [_headline(rows) for rows in grouped(memory_verdicts(record), ("model",))]


def _judged(
    cell: dict[str, Any], baseline: str, peaks: dict[tuple[int, int], int]
) -> dict[str, Any]:
    measured, predicted = cell["measured"], cell["predicted"]
    errors = [relative_error(measured[key], predicted[key]) for key in EXACT]
    error = max(errors, key=abs)
    dense_peak = peaks.get((cell["prompt_tokens"], cell["batch"]))
    compared = dense_peak and cell["model"] != baseline
    peak_error = relative_error(measured["peak_bytes"], predicted["peak_bytes"])
    outcome = _as_predicted(error)
    if outcome == AS_PREDICTED and abs(peak_error) > PEAK_TOLERANCE:
        outcome = PEAK_NOT_AS_PREDICTED
    row = {
        "benchmark": "memory",
        "model": cell["model"],
        "baseline": baseline,
        "prompt_tokens": cell["prompt_tokens"],
        "batch": cell["batch"],
        "peak_bytes": measured["peak_bytes"],
        "change": measured["peak_bytes"] / dense_peak - 1 if compared else None,
        "error": error,
        "peak_error": peak_error,
        "outcome": outcome,
    }
    return {**row, "sentence": _sentence(row)}


def _as_predicted(error: float) -> str:
    return AS_PREDICTED if abs(error) <= TOLERANCE else NOT_AS_PREDICTED


def _sentence(row: dict[str, Any]) -> str:
    change = "" if row["change"] is None else f", {_change([row['change']])} {row['baseline']}'s"
    return (
        f"{row['model']} at {counted(row['prompt_tokens'], 'prompt token')} and batch "
        f"{row['batch']}: prefill peak {mib(row['peak_bytes'])}{change}; weights and KV cache "
        f"{_accuracy([row])}, the peak {row['peak_error']:+.1%} from its prediction."
    )


def _headline(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    peak = span([row["peak_bytes"] / 2**20 for row in rows], ",.1f", " MiB")
    changes = [row["change"] for row in rows if row["change"] is not None]
    less = f", {_change(changes)} {first['baseline']}'s" if changes else ""
    peak_error = max((row["peak_error"] for row in rows), key=abs)
    outcomes = {row["outcome"] for row in rows}
    sentence = (
        f"prefill peak {peak}{less}, over {counted(len(rows), 'point')}; weights and KV cache "
        f"{_accuracy(rows)}; the peak at most {peak_error:+.1%} from its prediction."
    )
    return {
        **{key: first[key] for key in ("benchmark", "model", "baseline")},
        "outcome": outcomes.pop() if len(outcomes) == 1 else "mixed",
        "sentence": sentence,
    }


def _accuracy(rows: list[dict[str, Any]]) -> str:
    """Whether weights and cache are what was predicted, and how far from it at worst."""
    error = max((row["error"] for row in rows), key=abs)
    exact = [{**row, "outcome": _as_predicted(row["error"])} for row in rows]
    where = names_by_outcome(exact, "prompt_tokens")
    return f"{where} ({f'{error:+.2%} at worst' if error else 'equal'})"


def _change(changes: list[float]) -> str:
    if all(change <= 0 for change in changes):
        return f"{span([-change for change in changes], '.1%')} below"
    if all(change > 0 for change in changes):
        return f"{span(changes, '.1%')} above"
    return f"{span(changes, '+.1%')} against"
