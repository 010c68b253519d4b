"""Faster, slower or neither: every model of a throughput record against the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grasp_deploy.bench.ideal import Load, ideal_gain, share_of_ideal
from grasp_deploy.bench.reasons import Case, likely_reasons, reason_lines
from grasp_deploy.stats.noise import (
    FASTER,
    SLOWER,
    SMALLEST_RATIO,
    Difference,
    differences,
    log_ratios,
)
from grasp_deploy.stats.wording import grouped, listed, names_by_outcome, span

ENOUGH_OF_IDEAL = 0.8
QUANTITIES = {  # tokens per second: output ones over all the time, those of each phase over its own
    "throughput": "throughput",
    "prefill": "prefill speed",
    "decode": "decode speed",
}
SETTING = ("engine", "prompt_tokens", "new_tokens")
Cell = dict[str, Any]


def rates(cell: Cell, quantity: str) -> list[float]:
    """Tokens per second of each repetition of a cell; empty where there was nothing to decode."""
    samples = cell["samples"]
    if quantity == "throughput":
        return [cell["batch"] * cell["new_tokens"] / s["seconds"] for s in samples]
    if quantity == "prefill":
        return [cell["batch"] * cell["prompt_tokens"] / s["ttft_seconds"] for s in samples]
    if not all(s["tpot_seconds"] for s in samples):
        return []
    return [cell["batch"] / s["tpot_seconds"] for s in samples]


def throughput_verdicts(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One verdict for each model but the first, each cell of it, and each quantity.

    Beside the common keys: `quantity`, `engine`, `batch`, `prompt_tokens`, `new_tokens`,
    `repetitions`, `ratio` of the rates, its `interval`, the `ideal` ratio and `share_of_ideal`
    (null where unknown), and `reasons`.
    """
    pairs = list(_pairs(record))
    judged = []
    for quantity in QUANTITIES:
        some = [pair for pair in pairs if all(rates(cell, quantity) for cell in pair)]
        samples = [log_ratios(*(rates(cell, quantity) for cell in pair)) for pair in some]
        found = differences(samples, len(pairs) * len(QUANTITIES)) if samples else []
        rows = [
            _judged(record, quantity, pair, difference)
            for pair, difference in zip(some, found, strict=True)
        ]
        for row in rows:
            row["reasons"] = _reasons(record, row, rows)
        judged += rows
    return judged


def throughput_headlines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """For each model, setting and quantity one sentence over all batches; then likely reasons.

    Batches that did not fit are named as well, also those of the first model.
    """
    lines = _refusals(record)
    keys = ("benchmark", "model", "baseline", *SETTING)
    for rows in grouped(throughput_verdicts(record), ("model", *SETTING)):
        lines += [_headline(some) for some in grouped(rows, ("quantity",))]
        lines += reason_lines(rows, keys)
    return lines


def _refusals(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each model of which some batches were not measured."""
    refused = [cell for cell in record["cells"] if not cell["samples"]]
    return [
        {
            "benchmark": "throughput",
            "model": cells[0]["model"],
            "baseline": record["models"][0]["name"],
            **{key: cells[0][key] for key in SETTING},
            "outcome": "not measured",
            "sentence": f"not measured at batch {listed(cell['batch'] for cell in cells)}"
            f": {cells[0].get('refused') or 'nothing was written down'}.",
        }
        for cells in grouped(refused, ("model", *SETTING))
    ]


def _pairs(record: dict[str, Any]) -> Iterator[tuple[Cell, Cell]]:
    """Every cell with the first model's at the same point, where both were measured."""
    baseline = record["models"][0]["name"]
    keys = ("batch", *SETTING)
    dense = {
        tuple(cell[key] for key in keys): cell
        for cell in record["cells"]
        if cell["model"] == baseline
    }
    for cell in record["cells"]:
        partner = dense.get(tuple(cell[key] for key in keys))
        if cell["model"] != baseline and partner and partner["samples"] and cell["samples"]:
            yield partner, cell


def _judged(
    record: dict[str, Any], quantity: str, pair: tuple[Cell, Cell], difference: Difference
) -> dict[str, Any]:
    dense, cell = pair
    footprints = {model["name"]: model["footprint"] for model in record["models"]}
    load = Load(cell["batch"], cell["prompt_tokens"], cell["new_tokens"])
    ideals = ideal_gain(
        footprints[dense["model"]], footprints[cell["model"]], load, dense["samples"]
    )
    ideal = ideals.get(quantity)
    row = {
        "benchmark": "throughput",
        "model": cell["model"],
        "baseline": dense["model"],
        "quantity": quantity,
        **{key: cell[key] for key in ("batch", *SETTING)},
        "repetitions": len(cell["samples"]),
        "ratio": difference.ratio,
        "interval": list(difference.interval) if difference.interval else None,
        "outcome": difference.outcome,
        "ideal": ideal,
        "share_of_ideal": share_of_ideal(difference.ratio, ideal) if ideal else None,
    }
    return {**row, "sentence": _sentence(row)}


def _sentence(row: dict[str, Any]) -> str:
    interval = row["interval"]
    between = f" ({interval[0]:.2f}x to {interval[1]:.2f}x)" if interval else ""
    text = (
        f"{row['model']} at batch {row['batch']}: {row['ratio']:.2f}x the "
        f"{QUANTITIES[row['quantity']]} of {row['baseline']}{between}: {row['outcome']}"
    )
    if row["ideal"] is not None:
        text += f"; ideal {row['ideal']:.2f}x"
    if row["share_of_ideal"] and row["outcome"] == FASTER:
        text += f", {row['share_of_ideal']:.0%} of the way there"
    return f"{text}."


def _reasons(
    record: dict[str, Any], row: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> list[dict[str, str]]:
    """Likely reasons where a model that ought to be faster is slower, or short of the ideal."""
    ideal = row["ideal"]
    short = ideal is not None and _best_share(row) < ENOUGH_OF_IDEAL
    unexpected = row["outcome"] == SLOWER and (ideal is None or ideal > 1 / SMALLEST_RATIO)
    if not short and not unexpected:
        return []
    footprints = {model["name"]: model["footprint"] for model in record["models"]}
    alike = [r for r in rows if all(r[key] == row[key] for key in ("model", *SETTING))]
    case = Case(
        dense=footprints[row["baseline"]],
        pruned=footprints[row["model"]],
        batch=row["batch"],
        gain_by_batch={r["batch"]: r["ratio"] for r in alike},
        highest_gain=row["interval"][1] if row["interval"] else row["ratio"],
        record=record,
    )
    return likely_reasons(case)


def _best_share(row: dict[str, Any]) -> float:
    """How much of the way to the ideal the upper end of the interval lies."""
    highest = row["interval"][1] if row["interval"] else row["ratio"]
    return share_of_ideal(highest, row["ideal"]) or 0.0


def _headline(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One sentence over the batches of one model, setting and quantity."""
    first = rows[0]
    outcomes = {row["outcome"] for row in rows}
    ratios, batches = [row["ratio"] for row in rows], [row["batch"] for row in rows]
    sentence = (
        f"{span(ratios, '.2f', 'x')} the {QUANTITIES[first['quantity']]} of {first['baseline']} "
        f"at batch {span(batches, ',')}: {names_by_outcome(rows, 'batch')}"
    )
    # Of what may be nothing there is no share: those points wait for more repetitions.
    sure = [row for row in rows if row["outcome"] in (FASTER, SLOWER)]
    shares = [row["share_of_ideal"] for row in sure if row["share_of_ideal"] is not None]
    if shares:
        ideals = [row["ideal"] for row in sure]
        reached = span([max(0.0, share) for share in shares], ".0%")
        sentence += f"; {reached} of the way to the ideal {span(ideals, '.2f', 'x')}"
    return {
        **{key: first[key] for key in ("benchmark", "model", "baseline", "quantity", *SETTING)},
        "outcome": outcomes.pop() if len(outcomes) == 1 else "mixed",
        "sentence": f"{sentence}.",
    }
