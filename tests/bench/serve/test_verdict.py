"""Verdicts over load on the live server."""

from __future__ import annotations

import pytest

from grasp_deploy.bench.serve.verdict import headlines, verdicts
from grasp_deploy.stats.noise import FASTER, NO_DIFFERENCE
from tests.bench.records import Record, model, serve_record, typed

DENSE, PRUNED = model("dense"), model("pruned", 0.6)


def outcomes(record: Record) -> list[str]:
    return [row["outcome"] for row in verdicts(typed(record))]


def test_rates_against_the_first_model() -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 1.3})
    assert outcomes(record) == ["no request failed"] * 3 + [FASTER] * 3
    dense, pruned = headlines(typed(record))
    assert "0 of 4,500 requests failed" in dense["sentence"]
    assert pruned["outcome"] == FASTER and "over 3 loads: faster at each" in pruned["sentence"]
    same = serve_record([DENSE, {**DENSE, "name": "dense#2"}])
    assert set(outcomes(same)[3:]) == {NO_DIFFERENCE}


def test_reasons_of_a_slower_server() -> None:
    lines = headlines(typed(serve_record([DENSE, PRUNED], gains={"pruned": 0.8})))
    reasons = {line["reason"] for line in lines if "reason" in line}
    assert reasons == {"odd widths", "many distinct shapes"}


@pytest.mark.parametrize("failing", ["dense", "pruned"])
def test_failed_requests_are_named_and_nothing_is_compared(failing: str) -> None:
    record = typed(serve_record([DENSE, PRUNED], gains={"pruned": 1.3}, failed={failing: 2}))
    rows = verdicts(record)
    assert all(row["ratio"] is None for row in rows)
    failures = {(row["model"], row["outcome"]) for row in rows if row["failed"]}
    assert failures == {(failing, "6 requests failed")}
    line = next(line for line in headlines(record) if line["model"] == failing)
    assert line["outcome"] == "18 requests failed"
