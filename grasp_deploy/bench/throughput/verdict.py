"""Faster, slower or neither: every model of a throughput record against the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grasp_deploy.bench.reasons import Case, reason_lines
from grasp_deploy.bench.throughput.ideal import ideal_gains, share_of_ideal
from grasp_deploy.bench.throughput.record import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.stats.noise import (
    FASTER,
    SLOWER,
    SMALLEST_RATIO,
    TOO_FEW,
    UNDECIDED,
    Difference,
    differences,
)
from grasp_deploy.stats.wording import common_outcome, grouped, listed, points_by_outcome, span

ENOUGH_OF_IDEAL = 0.8
Row = dict[str, Any]


def verdicts(record: ThroughputRecord) -> list[Row]:
    """One JSON row for each model but the first, each of its cells, and each quantity.

    `ratio` is that of the rates, over 1 if the model is faster. `interval` is None below
    three repetitions, `share_of_ideal` where the ideal is hardly above 1.
    """
    pairs = [
        (dense, cell)
        for cell in record.cells
        if cell.samples and (dense := record.dense_cell(cell)) and dense.samples
    ]
    rows = []
    for quantity in QUANTITIES:
        measured = [pair for pair in pairs if all(cell.rates(quantity) for cell in pair)]
        rates = [(dense.rates(quantity), cell.rates(quantity)) for dense, cell in measured]
        results = differences(rates, len(pairs) * len(QUANTITIES))
        rows += [
            _verdict(record, quantity, dense, cell, difference)
            for (dense, cell), difference in zip(measured, results, strict=True)
        ]
    return rows


def _verdict(
    record: ThroughputRecord, quantity: str, dense: Cell, cell: Cell, difference: Difference
) -> Row:
    footprints = record.footprints
    ideal = ideal_gains(footprints[dense.model], footprints[cell.model], dense)[quantity]
    return {
        **_shared(record, cell.model),
        "quantity": quantity,
        "batch": cell.batch,
        "repetitions": len(cell.samples),
        **asdict(difference),
        "ideal": ideal,
        "share_of_ideal": share_of_ideal(difference.ratio, ideal),
    }


def headlines(record: ThroughputRecord) -> list[Row]:
    """For each model and quantity one sentence over all batches; then likely reasons.

    Batches that did not fit are named as well, also those of the first model.
    """
    lines = []
    for cells in grouped((c for c in record.cells if not c.samples), lambda cell: cell.model):
        batches = listed(cell.batch for cell in cells)
        refusal = f"not measured at batch {batches}: {cells[0].refused}."
        shared = _shared(record, cells[0].model)
        lines.append({**shared, "outcome": "not measured", "sentence": refusal})
    for rows in grouped(verdicts(record), lambda row: row["model"]):
        shared = _shared(record, rows[0]["model"])
        by_quantity = grouped(rows, lambda row: row["quantity"])
        lines += [
            {
                **shared,
                "quantity": group[0]["quantity"],
                "outcome": common_outcome(row["outcome"] for row in group),
                "sentence": _sentence(group),
            }
            for group in by_quantity
        ]
        cases = [_case(record, row, g) for g in by_quantity for row in g if row["interval"]]
        lines += reason_lines(filter(None, cases), shared)
    return lines


def _shared(record: ThroughputRecord, model: str) -> Row:
    cell = record.cells[0]
    return record.line(
        model, engine=cell.engine, prompt_tokens=cell.prompt_tokens, new_tokens=cell.new_tokens
    )


def _sentence(rows: Sequence[Row]) -> str:
    ratios = span([row["ratio"] for row in rows], ".2f", "x")
    batches = span([row["batch"] for row in rows], ",")
    quantity, baseline = QUANTITIES[rows[0]["quantity"]], rows[0]["baseline"]
    outcomes = points_by_outcome([(row["outcome"], row["batch"]) for row in rows])
    if rows[0]["outcome"] == UNDECIDED:
        outcomes = TOO_FEW.format(rows[0]["repetitions"])
    outcomes = outcomes.replace(SLOWER, f"{SLOWER} than {baseline}")
    sentence = f"{ratios} the {quantity} of {baseline} at batch {batches}: {outcomes}"
    # A ratio within noise, or below 1, has no share of the way.
    sure = [row for row in rows if row["outcome"] == FASTER]
    if shares := [row["share_of_ideal"] for row in sure if row["share_of_ideal"] is not None]:
        ideals = span([row["ideal"] for row in sure], ".2f", "x")
        sentence += f"; {span(shares, '.0%')} of the way to the ideal {ideals}"
    return f"{sentence}."


def _case(record: ThroughputRecord, row: Row, rows: Sequence[Row]) -> Case | None:
    """The case of a model that ought to be faster, and is slower or surely short of the ideal."""
    highest_ratio = row["interval"][1]
    share = share_of_ideal(highest_ratio, row["ideal"])
    is_short = share is not None and share < ENOUGH_OF_IDEAL
    if not is_short and (row["outcome"] != SLOWER or row["ideal"] * SMALLEST_RATIO <= 1):
        return None
    return Case(
        dense=record.footprints[row["baseline"]],
        pruned=record.footprints[row["model"]],
        batch=row["batch"],
        gain_by_batch={other["batch"]: other["ratio"] for other in rows},
        highest_gain=highest_ratio,
        on_gpu="gpu" in record.machine and record.settings.device != "cpu",
    )
