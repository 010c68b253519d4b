"""Verdicts over load on the live server, and their table."""

import pytest

from grasp_deploy.bench.serve_show import headlines, tables
from grasp_deploy.stats.noise import FASTER, NO_DIFFERENCE, UNDECIDED
from tests.bench.records import lines_of, model, row_of, serve_record, typed

DENSE, PRUNED = model("dense"), model("pruned", 0.6)


def test_rates_against_the_first_model() -> None:
    made = serve_record([DENSE, PRUNED], gains={"pruned": 1.3})
    dense, pruned = headlines(typed(made))
    assert dense["outcome"] == "no request failed"
    assert "0 of 4,500 requests failed" in dense["sentence"]
    assert pruned["outcome"] == FASTER and "over 3 loads: faster at each" in pruned["sentence"]
    for cell in made["cells"]:
        del cell["samples"][2:]
    _, twice = headlines(typed(made))
    assert twice["outcome"] == UNDECIDED and "(n=2): repeat at least 3 times" in twice["sentence"]
    del made["cells"][4:], made["cells"][1:3]
    made["cells"][1]["load"] = made["cells"][0]["load"]
    _, once = headlines(typed(made))
    assert "over 1 load: " in once["sentence"]
    _, same = headlines(typed(serve_record([DENSE, {**DENSE, "name": "dense#2"}])))
    assert same["outcome"] == NO_DIFFERENCE


@pytest.mark.parametrize("failing", ["dense", "pruned"])
def test_failed_requests_are_named_and_nothing_is_compared(failing: str) -> None:
    made = typed(serve_record([DENSE, PRUNED], gains={"pruned": 1.3}, failed={failing: 2}))
    assert not any("output tokens per second" in line["sentence"] for line in headlines(made))
    outcomes = {line["model"]: line["outcome"] for line in headlines(made)}
    assert outcomes.pop(failing) == "18 requests failed"
    assert [*outcomes.values()] == ["no request failed"]


def test_a_server_that_answered_without_a_token_is_not_compared() -> None:
    made = serve_record([DENSE, PRUNED])
    made["cells"][4]["samples"][0]["output_tokens_per_second"] = 0.0
    _, line = headlines(typed(made))
    assert line["outcome"] == "mixed" and "over 2 loads" in line["sentence"]


def test_latencies_changes_and_failures() -> None:
    made = serve_record([DENSE, PRUNED], gains={"pruned": 1.3}, failed={"pruned": 2})
    drawn = lines_of(tables(typed(made))[0])
    assert [row_of(drawn, f"{load} requests at once") for load in (8, 32, 128)]
    assert "100/270" in row_of(drawn, "dense", "none")
    assert "100/270" in row_of(drawn, "pruned", "+31%", "6 of 1,500")
