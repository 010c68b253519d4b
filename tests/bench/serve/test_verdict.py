"""Verdicts over load on the live server."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.bench.serve.verdict import serve_headlines, serve_verdicts
from grasp_deploy.stats.noise import FASTER, NO_DIFFERENCE
from tests.bench.records import Record, model, serve_record, typed

DENSE, PRUNED = model("dense"), model("pruned", 0.6)


def outcomes(record: Record) -> list[str]:
    return [row.outcome for row in serve_verdicts(typed(record))]


def reasons(record: Record) -> set[str]:
    return {line["reason"] for line in serve_headlines(typed(record)) if "reason" in line}


def test_rates_against_the_first_model() -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 1.3})
    assert outcomes(record) == ["no request failed"] * 3 + [FASTER] * 3
    dense, pruned = serve_headlines(typed(record))
    assert "none of 4,500 requests failed" in dense["sentence"]
    assert pruned["outcome"] == FASTER and "over 3 loads: faster at each" in pruned["sentence"]
    same = serve_record([DENSE, {**DENSE, "name": "dense#2"}])
    assert set(outcomes(same)[3:]) == {NO_DIFFERENCE}


@pytest.mark.parametrize(
    "flags", [["--tensor-parallel-size", "16"], ["--tensor_parallel_size=16"], ["-tp", "16"]]
)
def test_reasons_of_a_slower_server(flags: list[str]) -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 0.8})
    assert reasons(record) == {"odd widths", "many distinct shapes"}
    record["settings"]["server_flags"] = flags
    assert "tensor-parallel replication" in reasons(record)


@pytest.mark.parametrize("failing", ["dense", "pruned"])
def test_failed_requests_are_named_and_nothing_is_compared(failing: str) -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 1.3}, failed={failing: 2})
    rows = serve_verdicts(typed(record))
    assert {row.model for row in rows if row.failed} == {failing}
    assert all(row.outcome == "6 requests failed" for row in rows if row.failed)
    assert all(row.ratio is None for row in rows)
    lines: dict[str, Any] = {line["model"]: line for line in serve_headlines(typed(record))}
    assert lines[failing]["outcome"] == "18 requests failed"
