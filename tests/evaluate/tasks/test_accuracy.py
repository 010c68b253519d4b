"""The figure that is the accuracy, the average over tasks, and the paired change."""

import math
import statistics
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.accuracy import average, chance, change, headline, task_changes

FOUR, TWO = {"loglikelihoods": [-1.0] * 4}, {"loglikelihoods": [-1.0] * 2}


def cell(values: list[float], prompts: str = "same", error: float | None = 0.1) -> dict[str, Any]:
    return {
        "task": "piqa",
        "metric": "acc",
        "num_fewshot": 0,
        "accuracy": statistics.fmean(values),
        "standard_error": error,
        "prompts_sha256": prompts,
        "items": [{"item": i, "acc": value, **TWO} for i, value in enumerate(values)],
    }


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"alias": "x", "acc,none": 0.1, "acc_norm,none": 0.2}, ("acc_norm", "none")),
        ({"acc,none": 0.1, "acc_stderr,none": 0.2}, ("acc", "none")),
        (
            {"exact_match,strict-match": 0.1, "exact_match,flexible-extract": 0.2},
            ("exact_match", "strict-match"),
        ),
    ],
)
def test_the_figure_that_is_the_accuracy(
    figures: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert headline(figures) == expected


def test_figures_without_an_accuracy() -> None:
    with pytest.raises(InputError, match=r"no accuracy for both \(its metrics: f1\): name .* acc,"):
        headline({"alias": "both", "f1,none": 0.5})


def test_the_average_is_unweighted() -> None:
    few, many = cell([1, 0, 0, 1], error=0.3), cell([1.0] * 60 + [0.0] * 40, error=0.4)
    mean = average([few, many])
    assert mean["accuracy"] == pytest.approx((0.5 + 0.6) / 2)
    # Two independent estimates: the variance of their mean is a quarter of the sum.
    assert mean["standard_error"] == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 4))
    assert average([few, {**many, "standard_error": None}])["standard_error"] is None


def test_a_change_is_paired() -> None:
    before = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    after = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]  # one item of eight was lost
    shift, error = change([cell(before)], [cell(after)])
    assert shift == pytest.approx(-1 / 8)
    assert error == pytest.approx(1 / 8)  # of seven zeros and one -1: sqrt(1/8) / sqrt(8)
    assert change([cell(before)], [cell(before)]) == (0.0, 0.0)


def test_items_that_do_not_pair_up_have_the_error_of_two_samples() -> None:
    one, other = cell([1.0, 0.0], error=0.3), cell([0.0, 0.0], prompts="others", error=0.4)
    assert change([one, one], [one, other]) == (-0.25, None)
    (row,) = task_changes([one], [other])
    assert row["change_error"] == pytest.approx(math.hypot(0.3, 0.4))
    (row,) = task_changes([{**one, "standard_error": None}], [other])
    assert row["change_error"] is None


def test_a_row_of_changes() -> None:
    (row,) = task_changes([cell([1, 1, 1, 0])], [cell([1, 0, 1, 0])])
    assert row == {
        **{"task": "piqa", "metric": "acc", "num_fewshot": 0, "items": 4, "chance": 0.5},
        "dense": {"accuracy": 0.75, "standard_error": 0.1},
        "pruned": {"accuracy": 0.5, "standard_error": 0.1},
        "change": -0.25,
        "change_error": pytest.approx(0.25),  # of 0, -1, 0, 0: sqrt(1/4) / sqrt(4)
    }


def test_chance_is_one_of_the_choices() -> None:
    assert chance([FOUR, TWO]) == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert chance([{"answer": ["42"]}]) == 0.0  # nobody guesses a written answer
    assert chance([{"loglikelihoods": [-1.0]}]) == 0.0  # nor a last word, as in LAMBADA
