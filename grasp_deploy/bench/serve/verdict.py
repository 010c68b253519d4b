"""Dense and pruned under the same load: failed requests, and output tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grasp_deploy.bench.reasons import Case, reason_lines
from grasp_deploy.bench.serve.record import Cell, ServeRecord
from grasp_deploy.stats.noise import SLOWER, TOO_FEW, UNDECIDED, differences
from grasp_deploy.stats.wording import common_outcome, counted, grouped, points_by_outcome, span

Row = dict[str, Any]


def verdicts(record: ServeRecord) -> list[Row]:
    """One JSON row for each cell.

    `ratio` and `interval` compare output tokens per second with the first model's. They are None
    for the first model itself, and where requests failed: a server that drops some has less to do.
    """
    pairs = [
        (dense, cell)
        for cell in record.cells
        if (dense := record.dense_cell(cell)) and not dense.failed and not cell.failed
        if all(dense.rates + cell.rates)
    ]
    results = differences([(dense.rates, cell.rates) for dense, cell in pairs])
    by_point = {(c.model, c.load): asdict(r) for (_, c), r in zip(pairs, results, strict=True)}
    return [_verdict(record, cell, by_point.get((cell.model, cell.load))) for cell in record.cells]


def _verdict(record: ServeRecord, cell: Cell, difference: Row | None) -> Row:
    outcome = _failures(cell.failed) if cell.failed else "no request failed"
    return record.line(
        cell.model,
        load=cell.load,
        requests=cell.requests * len(cell.samples),
        completed=sum(sample.completed for sample in cell.samples),
        failed=cell.failed,
        repetitions=len(cell.samples),
        **(difference or {"ratio": None, "interval": None, "outcome": outcome}),
    )


def headlines(record: ServeRecord) -> list[Row]:
    """One sentence for each model over all loads; then likely reasons if it is slower."""
    lines = []
    for rows in grouped(verdicts(record), lambda row: row["model"]):
        failed = sum(row["failed"] for row in rows)
        outcome = common_outcome(row["outcome"] for row in rows)
        outcome = _failures(failed) if failed else outcome
        shared = record.line(rows[0]["model"])
        lines.append({**shared, "outcome": outcome, "sentence": _sentence(rows, failed)})
        cases = [_case(record, row, rows) for row in rows if row["outcome"] == SLOWER]
        lines += reason_lines(cases, shared)
    return lines


def _sentence(rows: Sequence[Row], failed: int) -> str:
    requests = sum(row["requests"] for row in rows)
    sentence = f"{failed:,} of {requests:,} requests failed"
    compared = [row for row in rows if row["ratio"] is not None]
    if compared:
        ratios = span([row["ratio"] for row in compared], ".2f", "x")
        outcomes = points_by_outcome([(row["outcome"], row["load"].title) for row in compared])
        if compared[0]["outcome"] == UNDECIDED:
            outcomes = TOO_FEW.format(compared[0]["repetitions"])
        baseline = rows[0]["baseline"]
        sentence += (
            f"; {ratios} the output tokens per second of {baseline} over {len(compared)} loads: "
            f"{outcomes}"
        )
    return f"{sentence}."


def _failures(failed: int) -> str:
    return f"{counted(failed, 'request')} failed"


def _case(record: ServeRecord, row: Row, rows: Sequence[Row]) -> Case:
    """The case of a slower model; its batch is as large as the requests at once."""
    at_once = row["load"].max_concurrency or 0
    gains = {other["load"].max_concurrency or 0: other["ratio"] for other in rows if other["ratio"]}
    return Case(
        dense=record.footprints[row["baseline"]],
        pruned=record.footprints[row["model"]],
        batch=at_once,
        gain_by_batch={**gains, at_once: row["ratio"]},
        highest_gain=row["interval"][1],
        on_gpu="gpu" in record.machine,
    )
