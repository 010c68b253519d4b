"""Faster, slower or neither: every model of a throughput record against the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from grasp_deploy.bench.ideal import Load, ideal_gains, share_of_ideal
from grasp_deploy.bench.reasons import Case, likely_reasons, on_gpu, reason_lines
from grasp_deploy.bench.throughput.record import QUANTITIES, Cell, ThroughputRecord
from grasp_deploy.stats.noise import (
    FASTER,
    SLOWER,
    SMALLEST_RATIO,
    Difference,
    differences,
    log_ratios,
)
from grasp_deploy.stats.wording import common_outcome, grouped, listed, points_by_outcome, span

ENOUGH_OF_IDEAL = 0.8


class Verdict(Struct, kw_only=True):
    """One model at one batch size against the first model, in one quantity.

    `ratio` is that of the rates, over 1 if the model is faster. `interval` is None for a single
    repetition, `share_of_ideal` where the ideal is hardly above 1.
    """

    benchmark: str = "throughput"
    model: str
    baseline: str
    quantity: str
    batch: int
    engine: str
    prompt_tokens: int
    new_tokens: int
    repetitions: int
    ratio: float
    interval: tuple[float, float] | None
    outcome: str
    ideal: float
    share_of_ideal: float | None

    @property
    def highest_ratio(self) -> float:
        """Upper end of the interval."""
        return self.interval[1] if self.interval else self.ratio

    @property
    def falls_short(self) -> bool:
        """True for a model that ought to be faster, and is slower or short of the ideal."""
        share = share_of_ideal(self.highest_ratio, self.ideal)
        short = share is not None and share < ENOUGH_OF_IDEAL
        return short or (self.outcome == SLOWER and self.ideal > 1 / SMALLEST_RATIO)


def throughput_verdicts(record: ThroughputRecord) -> list[Verdict]:
    """One verdict for each model but the first, each of its cells, and each quantity."""
    pairs = [
        (dense, cell)
        for cell in record.cells
        if cell.samples and (dense := record.dense_cell(cell)) and dense.samples
    ]
    verdicts = []
    for quantity in QUANTITIES:
        measured = [pair for pair in pairs if all(cell.rates(quantity) for cell in pair)]
        samples = [log_ratios(d.rates(quantity), c.rates(quantity)) for d, c in measured]
        results = differences(samples, len(pairs) * len(QUANTITIES)) if samples else []
        verdicts += [
            _verdict(record, quantity, dense, cell, difference)
            for (dense, cell), difference in zip(measured, results, strict=True)
        ]
    return verdicts


def _verdict(
    record: ThroughputRecord, quantity: str, dense: Cell, cell: Cell, difference: Difference
) -> Verdict:
    ideal = ideal_gains(
        record.footprints[dense.model],
        record.footprints[cell.model],
        Load(cell.batch, cell.prompt_tokens, cell.new_tokens),
        [(sample.seconds, sample.ttft_seconds) for sample in dense.samples],
    )[quantity]
    return Verdict(
        model=cell.model,
        baseline=dense.model,
        quantity=quantity,
        batch=cell.batch,
        engine=cell.engine,
        prompt_tokens=cell.prompt_tokens,
        new_tokens=cell.new_tokens,
        repetitions=len(cell.samples),
        ratio=difference.ratio,
        interval=difference.interval,
        outcome=difference.outcome,
        ideal=ideal,
        share_of_ideal=share_of_ideal(difference.ratio, ideal),
    )


def throughput_headlines(record: ThroughputRecord) -> list[dict[str, Any]]:
    """For each model and quantity one sentence over all batches; then likely reasons.

    Batches that did not fit are named as well, also those of the first model.
    """
    lines = _refusals(record)
    for rows in grouped(throughput_verdicts(record), lambda row: row.model):
        by_quantity = grouped(rows, lambda row: row.quantity)
        lines += [_headline(record, group) for group in by_quantity]
        cases = [_case(record, row, group) for group in by_quantity for row in group]
        reasons = [likely_reasons(case) for case in cases if case]
        lines += reason_lines(reasons, _shared(record, rows[0].model))
    return lines


def _shared(record: ThroughputRecord, model: str) -> dict[str, Any]:
    cell = record.cells[0]
    return {
        "benchmark": "throughput",
        "model": model,
        "baseline": record.baseline,
        "engine": cell.engine,
        "prompt_tokens": cell.prompt_tokens,
        "new_tokens": cell.new_tokens,
    }


def _refusals(record: ThroughputRecord) -> list[dict[str, Any]]:
    refused = [cell for cell in record.cells if not cell.samples]
    return [
        {
            **_shared(record, cells[0].model),
            "outcome": "not measured",
            "sentence": f"not measured at batch {listed(cell.batch for cell in cells)}: "
            f"{cells[0].refused or 'no reason was recorded'}.",
        }
        for cells in grouped(refused, lambda cell: cell.model)
    ]


def _headline(record: ThroughputRecord, rows: Sequence[Verdict]) -> dict[str, Any]:
    first = rows[0]
    ratios, batches = [row.ratio for row in rows], [row.batch for row in rows]
    sentence = (
        f"{span(ratios, '.2f', 'x')} the {QUANTITIES[first.quantity]} of {first.baseline} "
        f"at batch {span(batches, ',')}: "
        f"{points_by_outcome([(row.outcome, row.batch) for row in rows])}"
    )
    # A ratio within noise has no share: those points wait for more repetitions.
    sure = [row for row in rows if row.outcome in (FASTER, SLOWER)]
    shares = [row.share_of_ideal for row in sure if row.share_of_ideal is not None]
    if shares:
        reached = span([max(0.0, share) for share in shares], ".0%")
        ideals = span([row.ideal for row in sure], ".2f", "x")
        sentence += f"; {reached} of the way to the ideal {ideals}"
    return {
        **_shared(record, first.model),
        "quantity": first.quantity,
        "outcome": common_outcome(row.outcome for row in rows),
        "sentence": f"{sentence}.",
    }


def _case(record: ThroughputRecord, row: Verdict, rows: Sequence[Verdict]) -> Case | None:
    if not row.falls_short:
        return None
    return Case(
        dense=record.footprints[row.baseline],
        pruned=record.footprints[row.model],
        batch=row.batch,
        gain_by_batch={other.batch: other.ratio for other in rows},
        highest_gain=row.highest_ratio,
        on_gpu=on_gpu(record.machine, record.settings.device),
        engine=record.settings.engine,
        eager=record.settings.enforce_eager,
    )
