"""One study of several models: mean losses side by side, one table for each budget."""

from __future__ import annotations

from benchmarks.study.across_models import across_models, across_tables
from benchmarks.study.record import Study
from tests.benchmarks.study.records import Losses, study
from tests.benchmarks.study.test_tables import cells_of, drawn, title_of

ONE_SEED: Losses = {"default": {0.8: [0.1], 0.4: [0.3]}, "obs": {0.8: [0.5]}}


def across(*studies: Study) -> dict[str, dict[str, Study]]:
    return across_models({f"record-{index}": one for index, one in enumerate(studies)})


def test_losses_side_by_side_under_shared_budgets_with_dense_perplexities_below() -> None:
    small = study(ONE_SEED, ("c4", "ptb"), model="b/small/")
    small.rows[0].excess_nats["ptb"] = 0.3
    combined = across(study(model="a/large"), small)["methods"]
    assert list(combined) == ["large", "small"]
    (table,) = across_tables(combined)
    lines = drawn(table)
    assert title_of(lines).endswith("study of methods, keep 0.8")
    # large: the mean of 0.02 and 0.04; small: of 0.1 on c4 and 0.3 on ptb
    assert cells_of(lines, "default") == [["default", "0.030 ±0.010", "0.200"]]
    assert cells_of(lines, "flap") == [["flap", "0.100 ±0.000", ""]]
    assert cells_of(lines, "obs") == [["obs", "", "0.500"]]
    notes = " ".join(" ".join(lines).split())
    assert "dense perplexities: large 8.00 on c4; small 8.00 on c4, 8.00 on ptb" in notes


def test_nothing_to_lay_side_by_side() -> None:
    scales = study(model="b")
    scales.study = "scales"
    other_budget = study({"x": {0.4: [1]}}, model="b")
    for other in (study(model="b/large"), scales, other_budget):
        assert across(study(model="a/large"), other) == {}
