"""Rows that need not be measured again."""

from __future__ import annotations

from benchmarks.study.record import Accuracy, Losses, TaskAccuracy
from benchmarks.study.rows import by_key, key_of
from tests.benchmarks.study.records import row


def test_accuracies_with_scales_are_not_those_of_the_mask_alone() -> None:
    one = row("default", 0.5, 0, 0.1, ["c4"])
    one.without_scales = Losses({"c4": 9.0}, {"c4": 0.2})
    with_scales = key_of(one.options, 0.5, 0)
    alone = key_of({**one.options, "scale_epochs": 0}, 0.5, 0)
    rows = by_key(one)
    assert rows.keys() == {with_scales, alone} and rows[with_scales] is one
    assert rows[alone].perplexity == {"c4": 9.0}
    one.tasks = {"piqa": TaskAccuracy(0.6, None, metric="acc")}
    one.task_average = Accuracy(0.6, None)
    assert by_key(one) == {with_scales: one}
