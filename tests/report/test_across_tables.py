"""One study of several models: mean losses side by side, split by budget where that is too wide."""

from __future__ import annotations

import pytest
from grasp_deploy.report.cross_model import across_models
from grasp_deploy.report.cross_model_tables import across_tables

from grasp_deploy.report.records import NamedRecord
from tests.bench.records import Record, record
from tests.report.study_records import LOSSES, Losses, study_record
from tests.report.test_study_tables import cells_of, drawn, title_of

ONE_SEED: Losses = {"default": {0.8: [0.1], 0.4: [0.3]}, "obs": {0.8: [0.5]}}


def of_model(
    place: str | None, losses: Losses = LOSSES, corpora: tuple[str, ...] = ("c4",)
) -> Record:
    made = study_record(losses, corpora)
    made["settings"] = {} if place is None else {"model": place}
    return made


def named(*records: Record) -> list[NamedRecord]:
    return [NamedRecord(f"record-{index}", one) for index, one in enumerate(records)]


def test_losses_side_by_side_with_dense_perplexities_below() -> None:
    two = of_model("b/small/", ONE_SEED, ("c4", "ptb"))
    two["rows"][0]["excess_nats"]["ptb"] = 0.3
    (study,) = across_models(named(of_model("a/large"), two))
    assert [model["name"] for model in study["models"]] == ["large", "small"]
    (table,) = across_tables(study)
    lines = drawn(table)
    assert title_of(lines).endswith("study of methods, keep 0.8")
    # large: the mean of 0.02 and 0.04; small: of 0.1 on c4 and 0.3 on ptb
    assert cells_of(lines, "default") == [["default", "0.030 ±0.010", "0.200"]]
    assert cells_of(lines, "flap") == [["flap", "0.100 ±0.000", ""]]
    assert cells_of(lines, "obs") == [["obs", "", "0.500"]]
    notes = " ".join(" ".join(lines).split())
    assert "dense perplexities: large 8.00 on c4; small 8.00 on c4, 8.00 on ptb" in notes
    assert "mean over corpora where a model has several" in notes


def test_one_table_of_all_budgets_where_it_fits_and_one_each_where_not() -> None:
    losses: Losses = {"default": {keep: [0.1] for keep in (0.4, 0.8)}}
    (study,) = across_models(named(of_model("a/one", losses), of_model("a/two", losses)))
    (table,) = across_tables(study)
    assert cells_of(drawn(table), "default") == [["default", *["0.100"] * 4]]
    longer: Losses = {"wanda-structured, compensated": losses["default"]}
    models = [of_model(f"a/model-no-{index}-out-of-five", longer) for index in range(5)]
    (study,) = across_models(named(*models))
    tables = [drawn(table) for table in across_tables(study)]
    # 29 letters of the variant and 12 of each model's name: three columns fit, and no fourth
    assert [title_of(lines)[-3:] for lines in tables] == ["0.8"] * 2 + ["0.4"] * 2
    assert [len(cells_of(lines, next(iter(longer)))[0]) for lines in tables] == [4, 3, 4, 3]
    for lines in tables:
        assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    assert sum("dense perplexities" in " ".join(lines) for lines in tables) == 1


def test_only_budgets_that_two_models_share() -> None:
    (study,) = across_models(named(of_model("a"), of_model("b", ONE_SEED)))
    assert {cell["keep"] for cell in study["cells"]} == {0.8}
    assert across_models(named(of_model("a", {"x": {0.5: [1]}}), of_model("b", ONE_SEED))) == []


@pytest.mark.parametrize(
    "records",
    [
        [of_model("a/large")],
        [of_model("a/large"), of_model("b/large")],
        [of_model("a"), {**of_model("b"), "study": "scales"}],
        [of_model("a"), record("gate_step", [])],
    ],
    ids=["one record", "one model", "two studies", "another kind"],
)
def test_nothing_to_lay_side_by_side(records: list[Record]) -> None:
    assert across_models(named(*records)) == []


def test_models_of_one_name_are_numbered_and_nameless_ones_called_after_their_records() -> None:
    (study,) = across_models(named(of_model("a/large"), of_model("b/large"), of_model(None)))
    assert [model["name"] for model in study["models"]] == ["large", "large#2", "record-2"]
    assert [model["record"] for model in study["models"]] == ["record-0", "record-1", "record-2"]
