"""Dense and pruned under the same load: failed requests, and output tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from grasp_deploy.bench.reasons import Case, Conditions, likely_reasons, on_gpu, reason_lines
from grasp_deploy.bench.serve.record import Cell, LoadPoint, ServeRecord
from grasp_deploy.stats.noise import SLOWER, Difference, differences, log_ratios
from grasp_deploy.stats.wording import common_outcome, counted, grouped, points_by_outcome, span


class Verdict(Struct, kw_only=True):
    """One model under one load.

    `ratio` and `interval` compare output tokens per second with the first model's. They are None
    for the first model itself, and where requests failed: a server that drops some has less to do.
    """

    benchmark: str = "serve"
    model: str
    baseline: str
    load: LoadPoint
    requests: int
    completed: int
    failed: int
    ratio: float | None
    interval: tuple[float, float] | None
    outcome: str


def serve_verdicts(record: ServeRecord) -> list[Verdict]:
    """One verdict for each cell."""
    pairs = [
        (dense, cell)
        for cell in record.cells
        if (dense := record.dense_cell(cell)) and not dense.failed and not cell.failed
    ]
    samples = [log_ratios(dense.rates, cell.rates) for dense, cell in pairs]
    results = differences(samples, len(samples)) if samples else []
    by_point = {(c.model, c.load): result for (_, c), result in zip(pairs, results, strict=True)}
    return [
        _verdict(record.baseline, cell, by_point.get((cell.model, cell.load)))
        for cell in record.cells
    ]


def _verdict(baseline: str, cell: Cell, difference: Difference | None) -> Verdict:
    outcome = difference.outcome if difference else "no request failed"
    return Verdict(
        model=cell.model,
        baseline=baseline,
        load=cell.load,
        requests=cell.asked,
        completed=sum(sample.completed for sample in cell.samples),
        failed=cell.failed,
        ratio=difference.ratio if difference else None,
        interval=difference.interval if difference else None,
        outcome=_failures(cell.failed) if cell.failed else outcome,
    )


def serve_headlines(record: ServeRecord) -> list[dict[str, Any]]:
    """One sentence for each model over all loads; then likely reasons if it is slower."""
    lines = []
    for rows in grouped(serve_verdicts(record), lambda row: row.model):
        shared = {"benchmark": "serve", "model": rows[0].model, "baseline": record.baseline}
        lines.append({**shared, **_headline(rows)})
        slower = [row for row in rows if row.outcome == SLOWER]
        lines += reason_lines([likely_reasons(_case(record, r, rows)) for r in slower], shared)
    return lines


def _headline(rows: Sequence[Verdict]) -> dict[str, Any]:
    failed = sum(row.failed for row in rows)
    requests = counted(sum(row.requests for row in rows), "request")
    sentence = f"{failed:,} of {requests} failed" if failed else f"none of {requests} failed"
    compared = [row for row in rows if row.ratio is not None]
    if compared:
        ratios = span([row.ratio for row in compared if row.ratio], ".2f", "x")
        outcomes = points_by_outcome([(row.outcome, row.load.title) for row in compared])
        sentence += (
            f"; {ratios} the output tokens per second of {rows[0].baseline} over "
            f"{counted(len(compared), 'load')}: {outcomes}"
        )
    outcome = common_outcome(row.outcome for row in rows)
    return {"outcome": _failures(failed) if failed else outcome, "sentence": f"{sentence}."}


def _failures(failed: int) -> str:
    return f"{counted(failed, 'request')} failed"


def _case(record: ServeRecord, row: Verdict, rows: Sequence[Verdict]) -> Case:
    """The case of a slower model; its batch is as large as the requests at once."""
    assert row.ratio and row.interval, "a slower model was compared"
    at_once = row.load.max_concurrency or 0
    gains = {
        other.load.max_concurrency: other.ratio
        for other in rows
        if other.ratio and other.load.max_concurrency
    }
    return Case(
        dense=record.footprints[row.baseline],
        pruned=record.footprints[row.model],
        batch=at_once,
        gain_by_batch=gains if at_once else {0: row.ratio},
        highest_gain=row.interval[1],
        conditions=Conditions(
            on_gpu=on_gpu(record.machine),
            eager="--enforce-eager" in record.settings.server_flags,
            server_flags=record.settings.server_flags,
        ),
    )
