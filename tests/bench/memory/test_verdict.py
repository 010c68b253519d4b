"""Verdicts over memory."""

from __future__ import annotations

import pytest

from grasp_deploy.bench.memory.verdict import memory_headlines, memory_verdicts
from tests.bench.records import memory_record, model, typed

DENSE, PRUNED = model("dense"), model("pruned", 0.6)


def test_the_peak_against_the_first_model() -> None:
    record = typed(memory_record([DENSE, PRUNED], prompt_tokens=(256, 2048)))
    rows = memory_verdicts(record)
    assert {row["outcome"] for row in rows} == {"as predicted"}
    assert [row["change"] is None for row in rows] == [True, True, False, False]
    peaks = {(row["model"], row["prompt_tokens"]): row["peak_bytes"] for row in rows}
    change = peaks["pruned", 2048] / peaks["dense", 2048] - 1
    assert rows[-1]["change"] == pytest.approx(change)
    assert f"{change:+.1%} against dense" in memory_headlines(record)[1]["sentence"]


@pytest.mark.parametrize(("error", "outcome"), [(0.004, "as"), (-0.006, "not as"), (0.1, "not as")])
def test_weights_that_are_not_what_was_predicted(error: float, outcome: str) -> None:
    (line,) = memory_headlines(typed(memory_record([DENSE], weight_error=error)))
    assert line["outcome"] == f"{outcome} predicted"
    assert f"{error:+.2%} at worst" in line["sentence"]
