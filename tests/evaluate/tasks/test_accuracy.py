"""Which figure is the accuracy, the average over tasks, and the paired change."""

import math
import statistics
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.accuracy import average, change, check_has_accuracy, headline


def cell(values: list[float], metric: str = "acc", prompts: str = "same") -> dict[str, Any]:
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return {
        "metric": metric,
        "accuracy": statistics.fmean(values),
        "standard_error": spread,
        "prompts_sha256": prompts,
        "items": [{"item": i, metric.partition(",")[0]: value} for i, value in enumerate(values)],
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


def test_a_task_without_accuracy_is_refused() -> None:
    check_has_accuracy("piqa", ["acc", "acc_norm"])
    with pytest.raises(InputError, match=r"task wikitext has no accuracy .*word_perplexity"):
        check_has_accuracy("wikitext", ["word_perplexity", "byte_perplexity"])


def test_the_average_is_unweighted() -> None:
    few, many = cell([1, 0, 0, 1]), cell([1.0] * 60 + [0.0] * 40)
    mean = average([few, many])
    assert mean["accuracy"] == pytest.approx((0.5 + 0.6) / 2)
    # Two independent estimates: the variance of their mean is a quarter of the sum.
    variances = [0.5**2 * 4 / 3 / 4, 0.6 * 0.4 * 100 / 99 / 100]
    assert mean["standard_error"] == pytest.approx(math.sqrt(sum(variances) / 4))
    assert average([few, {**many, "standard_error": None}])["standard_error"] is None


def test_a_change_is_paired() -> None:
    before = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    after = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]  # one item of eight was lost
    shift, error = change([cell(before)], [cell(after)])
    assert shift == pytest.approx(-1 / 8)
    assert error == pytest.approx(1 / 8)  # of seven zeros and one -1: sqrt(1/8) / sqrt(8)
    assert change([cell(before)], [cell(before)]) == (0.0, 0.0)


def test_a_change_over_other_items_has_no_error() -> None:
    one, other = cell([1.0, 0.0]), cell([0.0, 0.0], prompts="others")
    assert change([one], [other]) == (-0.5, None)
    assert change([one, one], [one, other]) == (-0.25, None)
