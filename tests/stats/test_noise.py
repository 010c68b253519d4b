"""Differences and noise: no claim is made out of noise, and a real difference is found."""

import math
import random

import pytest

from grasp_deploy.stats.noise import (
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    UNDECIDED,
    differences,
    t_quantile,
    two_sided,
)


# Two-sided 95 % points of Student's t, as printed in any table of it.
@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (9, 2.262), (120, 1.98)]
)
def test_quantiles_of_t(freedom: int, expected: float) -> None:
    assert t_quantile(0.05, freedom) == pytest.approx(expected, abs=6e-4)
    assert two_sided(t_quantile(0.01, freedom), freedom) == pytest.approx(0.01)


def outcomes(*ratios: list[float]) -> list[str]:
    """The outcomes of comparisons, each given as the logarithms of its repetitions' ratios."""
    pairs = [([1.0] * len(logs), [math.exp(log) for log in logs]) for logs in ratios]
    return [difference.outcome for difference in differences(pairs)]


def test_the_interval_of_one_comparison_is_students() -> None:
    ratios = [math.log(r) for r in (1.10, 1.20, 1.15)]
    (difference,) = differences([([10, 5, 20], [11, 6, 23])])
    mean = sum(ratios) / 3
    deviation = math.sqrt(sum((r - mean) ** 2 for r in ratios) / 2)
    half_width = 4.302653 * deviation / math.sqrt(3)
    assert difference.ratio == pytest.approx((1.10 * 1.20 * 1.15) ** (1 / 3))
    ends = (math.exp(mean - half_width), math.exp(mean + half_width))
    assert difference.interval == pytest.approx(ends)


def test_three_samples_that_lie_close_are_judged_by_the_noise_of_all() -> None:
    lucky = [math.log(r) for r in (1.050, 1.051, 1.049)]
    noisy = [[0.1, -0.1, 0.02], [-0.08, 0.09, 0.0], [0.05, -0.12, 0.07]]
    assert outcomes(lucky) == [FASTER]
    assert outcomes(lucky, *noisy) == [NO_DIFFERENCE] * 4


def test_two_per_cent_is_the_least_that_is_called_a_difference() -> None:
    for gain, outcome in ((1.019, NO_DIFFERENCE), (1.025, FASTER), (0.97, SLOWER)):
        assert outcomes([math.log(gain * rate) for rate in (1, 1.001, 0.999)]) == [outcome]


def test_one_repetition_and_two_decide_nothing() -> None:
    (difference,) = differences([([1], [1.5])])
    assert (difference.interval, difference.outcome) == (None, UNDECIDED)
    assert outcomes([0.5, 0.5001]) == [UNDECIDED] and outcomes([0.5, 0.5001, 0.5]) == [FASTER]


@pytest.mark.parametrize("noisy_point", [1.0, 4.0])
def test_noise_alone_is_hardly_ever_called_a_difference(noisy_point: float) -> None:
    """7 points and 5 % of noise, or 20 % at one of them; 500 records."""
    draw = random.Random(3)
    claims = []
    for _ in range(500):
        points = [
            [draw.gauss(0, 0.05 * (noisy_point if point == 0 else 1)) for _ in range(3)]
            for point in range(7)
        ]
        claims.append(sum(o != NO_DIFFERENCE for o in outcomes(*points)))
    assert sum(claims) < 0.01 * 3500
    assert sum(map(bool, claims)) < 0.05 * 500
