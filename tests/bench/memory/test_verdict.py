"""Verdicts over memory, and their table."""

from __future__ import annotations

import pytest

from grasp_deploy.bench.memory.table import memory_table
from grasp_deploy.bench.memory.verdict import headlines, verdicts
from tests.bench.records import lines_of, memory_record, model, row_of, typed

DENSE, PRUNED = model("dense"), model("pruned", 0.6)


def test_the_peak_against_the_first_model() -> None:
    document = memory_record([DENSE, PRUNED], prompt_tokens=(256, 2048))
    record = typed(document)
    rows = verdicts(record)
    assert {row["outcome"] for row in rows} == {"as predicted"}
    assert [row["change"] is None for row in rows] == [True, True, False, False]
    peaks = [cell["measured"]["peak_bytes"] for cell in document["cells"]]
    change = peaks[3] / peaks[1] - 1
    assert rows[-1]["change"] == pytest.approx(change)
    assert f"{change:+.1%} against dense" in headlines(record)[1]["sentence"]
    lines = lines_of(memory_table(record))
    assert row_of(lines, "change", f"{change:+.1%}")
    for cell in document["cells"]:
        for kind in ("predicted", "measured"):
            assert row_of(lines, kind, *(f"{size / 2**20:,.1f}" for size in cell[kind].values()))


@pytest.mark.parametrize(("error", "outcome"), [(0.004, "as"), (-0.006, "not as")])
def test_weights_that_are_not_what_was_predicted(error: float, outcome: str) -> None:
    (line,) = headlines(typed(memory_record([DENSE], weight_error=error)))
    assert line["outcome"] == f"{outcome} predicted"
    assert f"{error:+.2%} at worst" in line["sentence"]


def test_a_peak_that_is_not_what_was_predicted() -> None:
    document = memory_record([DENSE], prompt_tokens=(256,))
    document["cells"][0]["measured"]["peak_bytes"] *= 2
    (row,) = verdicts(typed(document))
    assert row["outcome"] == "peak not as predicted"
