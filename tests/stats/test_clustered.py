"""Errors of mean losses over clusters, against formulas written out."""

from __future__ import annotations

import math
import statistics

import pytest

from grasp_deploy.stats.clustered import (
    clustered_error,
    paired_error,
    perplexity_interval,
    stratified_error,
)


def test_clusters_of_one_size_have_the_error_of_their_means() -> None:
    means = [2.0, 2.5, 1.5, 3.0]
    expected = statistics.stdev(means) / 2
    assert clustered_error([10 * mean for mean in means], [10] * 4) == pytest.approx(expected)
    assert clustered_error([20.0], [10]) is None


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


def test_the_interval_of_a_perplexity() -> None:
    assert perplexity_interval(2.0, 0.1) == pytest.approx([math.exp(1.804), math.exp(2.196)])
    assert perplexity_interval(2.0, None) is None
