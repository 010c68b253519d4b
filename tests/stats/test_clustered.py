"""Errors of mean losses over clusters, against formulas written out."""

from __future__ import annotations

import math
import statistics

import pytest

from grasp_deploy.stats.clustered import clustered_error, paired_error, perplexity_interval


def test_clusters_of_one_size_have_the_error_of_their_means() -> None:
    means = [2.0, 2.5, 1.5, 3.0]
    expected = statistics.stdev(means) / 2
    assert clustered_error([10 * mean for mean in means], [10] * 4) == pytest.approx(expected)
    assert clustered_error([20.0], [10]) is None


def test_pairs_share_what_makes_a_block_hard() -> None:
    before = [1.0, 5.0, 3.0]
    assert paired_error(before, [loss + 0.1 for loss in before]) == pytest.approx(0, abs=1e-12)


def test_the_interval_of_a_perplexity() -> None:
    assert perplexity_interval(2.0, 0.1) == pytest.approx([math.exp(1.804), math.exp(2.196)])
    assert perplexity_interval(2.0, None) is None
