"""Accuracies of a study: means over seeds, and the error of the items."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from benchmarks.study.task_tables import accuracy_tables
from tests.benchmarks.study.records import study, with_tasks
from tests.benchmarks.study.test_tables import cells_of, drawn, title_of

TWO = {"piqa": "acc_norm", "winogrande": "acc"}
PAPER = {
    **{"arc_challenge": "acc_norm", "arc_easy": "acc_norm", "hellaswag_1000": "acc_norm"},
    **TWO,
}


def test_accuracies_by_variant_and_budget_with_the_dense_model_first() -> None:
    (table,) = accuracy_tables(with_tasks(study(), TWO, [0.7, 0.5, 0.6]))
    lines = drawn(table)
    assert title_of(lines) == "Accuracy on tasks, %: study of methods"
    # 0.03 of two tasks: 0.03 / sqrt(2) of their average
    assert cells_of(lines, "dense") == [["dense", "70.0 ± 3.0", "80.0 ± 3.0", "75.0 ± 2.1"]]
    # 50 and 60 over two seeds on the same items, whose error is that of one seed
    assert cells_of(lines, "default") == [["default", "55.0 ± 3.0", "65.0 ± 3.0", "60.0 ± 2.1"]]
    assert cells_of(lines, "flap") == [], "it has run none"
    assert [row[0] for row in cells_of(lines, "keep 0.8")] == ["keep 0.8"]


def test_the_caption_tells_metrics_rules_and_what_was_left_out() -> None:
    record = with_tasks(study(), TWO, [0.7, 0.5, 0.6])
    record.settings["task_limit"] = 20
    (table,) = accuracy_tables(record)
    notes = " ".join(" ".join(drawn(table)).split())
    for words in (
        "acc_norm where a task has it, else acc",
        "acc_norm: piqa; acc: winogrande",
        "unweighted, as in the paper",
        "means over seeds",
        "only the first 20 items of each task",
    ):
        assert words in notes, words


def test_an_unknown_error_is_left_out_and_one_task_has_no_average() -> None:
    record = with_tasks(study(), {"piqa": "acc"}, [0.7, 0.5, 0.6])
    assert record.rows[0].tasks is not UNSET
    record.rows[0].tasks["piqa"].standard_error = None
    (table,) = accuracy_tables(record)
    assert cells_of(drawn(table), "default") == [["default", "55.0"]]


@pytest.mark.parametrize("variant", ["default", "wanda-structured, compensated"])
def test_many_tasks_make_several_tables_and_nothing_is_cut(variant: str) -> None:
    record = with_tasks(study({variant: {0.5: [0.1]}}), PAPER, [0.5, 0.4])
    tables = [drawn(table) for table in accuracy_tables(record)]
    assert len(tables) == 2
    for lines in tables:
        assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    cells = [cell for lines in tables for cell in cells_of(lines, variant)[0][1:]]
    assert cells == [f"{p}.0 ± 3.0" for p in (40, 50, 60, 70, 80)] + ["60.0 ± 1.3"]
    assert sum("acc_norm where" in " ".join(lines) for lines in tables) == 1


def test_a_study_without_tasks_has_no_such_table() -> None:
    assert accuracy_tables(study()) == []
