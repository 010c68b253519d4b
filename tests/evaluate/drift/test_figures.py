"""Means over kinds of text, flips of answers and lengths, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.evaluate.drift.figures import answers_of, excess_over, flips_of, text_drift
from grasp_deploy.evaluate.drift.record import TextDrift

BLOCKS = Blocks(torch.zeros(2, 5, dtype=torch.int64), TextSource("c4"), documents=1)


def text(name: str, excess: tuple[float, float], calibrated_on: bool = False) -> TextDrift:
    means = torch.tensor([[0.1, 0.75, 3.0, 3.0 + excess[0]], [0.3, 1.0, 5.0, 5.0 + excess[1]]])
    return text_drift(TextSource(name), BLOCKS, means.double(), calibrated_on)


def cell(*right: float) -> dict[str, Any]:
    items = [{"item": place, "acc": value} for place, value in enumerate(right)]
    return {"task": "mine", "metric": "acc", "items": items}


def test_a_text() -> None:
    row = text("c4", (0.2, 0.4))
    assert (row.divergence, row.agreement) == pytest.approx((0.2, 0.875))
    assert (row.dense_loss, row.excess_loss, row.excess_error) == pytest.approx((4, 0.3, 0.1))
    assert (row.tokens, row.divergence_error) == (8, pytest.approx(0.1))


def test_the_worst_kind_is_named_and_calibrated_text_does_not_count() -> None:
    texts = [text("c4", (0.2, 0.4)), text("novel", (0.8, 1.0)), text("seen", (9.0, 9.0), True)]
    excess = excess_over(texts)
    assert (excess.mean, excess.worst, excess.worst_text) == (
        pytest.approx(0.6),
        pytest.approx(0.9),
        "novel",
    )
    assert excess.mean_error == pytest.approx(math.hypot(0.1, 0.1) / 2) and excess.texts == 2
    assert excess_over(texts[2:]).worst_text == "seen"


def test_flips_in_both_directions() -> None:
    row = flips_of(cell(1, 1, 1, 0, 0, 0, 1, 1), cell(1, 0, 0, 1, 0, 0, 1, 1))
    assert (row.items, row.flips, row.right_to_wrong, row.wrong_to_right) == (
        8,
        3 / 8,
        2 / 8,
        1 / 8,
    )
    assert row.flips_error == pytest.approx(math.sqrt(3 / 8 * 5 / 8 / 7))


def test_an_answer_that_never_ended_counts_in_full() -> None:
    row = answers_of([4, 6, None], [None, None, 2], 20)
    assert (row.dense_length, row.pruned_length) == (10, 14)
    assert (row.dense_unended, row.pruned_unended) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
