"""How dense and pruned serve the same load, and whether every request was answered."""

from __future__ import annotations

import statistics
from typing import Any

from grasp_deploy.bench.reasons import Case, likely_reasons, reason_lines
from grasp_deploy.stats.noise import SLOWER, Difference, differences, log_ratios
from grasp_deploy.stats.wording import counted, grouped, names_by_outcome, span

Cell = dict[str, Any]


def load_name(load: dict[str, Any]) -> str:
    """A load in words: `8 requests at once`, `4 requests per second`, `all requests at once`."""
    at_once, rate = load["max_concurrency"], load["request_rate"]
    parts = [f"{rate:g} requests per second"] if rate is not None else []
    if at_once is not None:
        parts.append(f"{'at most ' if parts else ''}{counted(at_once, 'request')} at once")
    return ", ".join(parts) or "all requests at once"


def serve_verdicts(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One verdict for each cell: failed requests, and output tokens per second against the first.

    Beside the common keys: `load`, `requests`, `completed`, `failed`, `ratio` and `interval` of the
    output tokens per second (null for the first model, and where requests failed, since a server
    that drops some has less to do), and `reasons` where it is slower.
    """
    baseline = record["models"][0]["name"]
    dense = {_key(cell): cell for cell in record["cells"] if cell["model"] == baseline}
    pairs = {
        index: (dense[_key(cell)], cell)
        for index, cell in enumerate(record["cells"])
        if cell["model"] != baseline and _key(cell) in dense
    }
    whole = {index: pair for index, pair in pairs.items() if not any(map(_failed, pair))}
    samples = [log_ratios(*map(_rates, pair)) for pair in whole.values()]
    found = differences(samples, len(samples)) if samples else []
    compared = dict(zip(whole, found, strict=True))
    rows = [
        _judged(cell, baseline, dense.get(_key(cell)), compared.get(index))
        for index, cell in enumerate(record["cells"])
    ]
    for row in rows:
        row["reasons"] = _reasons(record, row, rows) if row["outcome"] == SLOWER else []
    return rows


def serve_headlines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One sentence for each model over all loads; then likely reasons if it is slower."""
    lines = []
    for rows in grouped(serve_verdicts(record), ("model",)):
        lines.append(_headline(rows))
        lines += reason_lines(rows, ("benchmark", "model", "baseline"))
    return lines


def _headline(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first, failed = rows[0], sum(row["failed"] for row in rows)
    outcomes = {row["outcome"] for row in rows}
    outcome = outcomes.pop() if len(outcomes) == 1 else "mixed"
    lost = f"{failed:,}" if failed else "none"
    sentence = f"{lost} of {counted(sum(row['requests'] for row in rows), 'request')} failed"
    compared = [{**row, "at": load_name(row["load"])} for row in rows if row["ratio"] is not None]
    if compared:
        sentence += (
            f"; {span([row['ratio'] for row in compared], '.2f', 'x')} the output tokens per "
            f"second of {first['baseline']} over {counted(len(compared), 'load')}: "
            f"{names_by_outcome(compared, 'at')}"
        )
    return {
        **{key: first[key] for key in ("benchmark", "model", "baseline")},
        "outcome": f"{counted(failed, 'request')} failed" if failed else outcome,
        "sentence": f"{sentence}.",
    }


def _key(cell: Cell) -> tuple[Any, Any]:
    return cell["load"]["max_concurrency"], cell["load"]["request_rate"]


def _failed(cell: Cell) -> int:
    return sum(int(sample["failed"]) for sample in cell["samples"])


def _rates(cell: Cell) -> list[float]:
    return [sample["output_tokens_per_second"] for sample in cell["samples"]]


def _judged(
    cell: Cell, baseline: str, dense: Cell | None, difference: Difference | None
) -> dict[str, Any]:
    failed, interval = _failed(cell), difference.interval if difference else None
    outcome = difference.outcome if difference else "no request failed"
    row = {
        "benchmark": "serve",
        "model": cell["model"],
        "baseline": baseline,
        "load": cell["load"],
        "requests": cell["requests"] * len(cell["samples"]),
        "completed": sum(sample["completed"] for sample in cell["samples"]),
        "failed": failed,
        "ratio": difference.ratio if difference else None,
        "interval": list(interval) if interval else None,
        "outcome": f"{counted(failed, 'request')} failed" if failed else outcome,
    }
    return {**row, "sentence": _sentence(row, cell, dense)}


def _reasons(
    record: dict[str, Any], row: dict[str, Any], rows: list[dict[str, Any]]
) -> list[dict[str, str]]:
    """Likely reasons; the batch is as large as the requests that are at once at the server."""
    footprints = {model["name"]: model["footprint"] for model in record["models"]}
    gains = {
        other["load"]["max_concurrency"]: other["ratio"]
        for other in rows
        if other["model"] == row["model"] and other["ratio"] and other["load"]["max_concurrency"]
    }
    at_once = row["load"]["max_concurrency"] or 0
    case = Case(
        dense=footprints[row["baseline"]],
        pruned=footprints[row["model"]],
        batch=at_once,
        gain_by_batch=gains if at_once else {0: row["ratio"]},
        highest_gain=row["interval"][1],
        record=record,
    )
    return likely_reasons(case)


def _sentence(row: dict[str, Any], cell: Cell, dense: Cell | None) -> str:
    failed = f"{counted(row['failed'], 'request')} failed" if row["failed"] else "none failed"
    text = (
        f"{row['model']}, {load_name(cell['load'])}: {row['completed']:,} of "
        f"{counted(row['requests'], 'request')} answered, {failed}"
    )
    if dense is None or cell["model"] == row["baseline"]:
        return f"{text}."
    if row["ratio"] is None:
        return f"{text}; not compared with {row['baseline']}, since requests failed."
    low, high = row["interval"] or (None, None)
    interval = f" ({low:.2f}x to {high:.2f}x)" if low else ""
    return (
        f"{text}; {row['ratio']:.2f}x the output tokens per second of {row['baseline']}{interval}: "
        f"{row['outcome']}; median TTFT {_median_ms(cell, 'ttft_seconds')} ms against "
        f"{_median_ms(dense, 'ttft_seconds')} ms."
    )


def _median_ms(cell: Cell, name: str) -> str:
    median = statistics.median(sample[name]["p50"] for sample in cell["samples"])
    return f"{1000 * median:,.1f}"
