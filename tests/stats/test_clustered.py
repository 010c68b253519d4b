"""Errors of mean losses over sequences, against formulas written out."""

import math
import statistics

import pytest

from grasp_deploy.stats.clustered import paired_error, standard_error, stratified_error


def test_one_value_has_no_error() -> None:
    assert standard_error([2.0]) is None
    assert standard_error([2.0, 2.5, 1.5, 3.0]) == pytest.approx(math.sqrt(1.25 / 3 / 4))


def test_pairs_share_what_makes_a_block_hard() -> None:
    before = [1.0, 5.0, 3.0]
    assert paired_error(before, [loss + 0.1 for loss in before]) == pytest.approx(0, abs=1e-12)


def test_what_sources_differ_by_is_no_sampling_error() -> None:
    before, after = [0.0] * 5, [1.0, 1.2, -1.0, -0.8, -0.9]
    apart = stratified_error(before, after, [0, 0, 1, 1, 1])
    variances = 2 * statistics.variance(after[:2]) + 3 * statistics.variance(after[2:])
    assert apart == pytest.approx(math.sqrt(variances) / 5)
    together = paired_error(before, after)
    assert apart is not None and together is not None and apart < together / 5
    assert stratified_error(before, after, [0] * 5) == pytest.approx(together)
    assert stratified_error(before, after, [0, 1, 1, 1, 1]) == pytest.approx(together)
