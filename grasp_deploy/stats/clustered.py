"""Sampling error of a mean loss: another text of the same kind would have given another.

Losses of neighbouring tokens are alike, so tokens are not independent samples; sequences (or
documents) nearly are. The error is that of a mean over clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import variance

NORMAL_95 = 1.96


def clustered_error(summed: Sequence[float], tokens: Sequence[int]) -> float | None:
    """Standard error of sum(summed) / sum(tokens), the mean loss over clusters of tokens.

    `summed` losses and `tokens` of each cluster. Clusters of one size: the standard deviation of
    their means over the root of their number; else that of a ratio of sums, linearised. None for
    one cluster.
    """
    count, total = len(summed), sum(tokens)
    if count < 2:
        return None
    mean = math.fsum(summed) / total
    deviations = (loss - mean * size for loss, size in zip(summed, tokens, strict=True))
    return math.sqrt(count / (count - 1) * math.fsum(d * d for d in deviations)) / total


def paired_error(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Standard error of the mean of `after - before`, mean losses of the same sequences.

    Sequences hard for one are hard for both, so it is far below the error of either. None for one.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return clustered_error(differences, [1] * len(differences))


def stratified_error(
    before: Sequence[float], after: Sequence[float], strata: Sequence[int]
) -> float | None:
    """As `paired_error`, of sequences from several sources in fixed shares.

    What sources differ by is no sampling error: only what sequences of one source differ by is. A
    source of one sequence tells nothing of that, so then all count as one source.
    """
    differences: dict[int, list[float]] = {}
    for first, second, stratum in zip(before, after, strata, strict=True):
        differences.setdefault(stratum, []).append(second - first)
    if any(len(of_source) < 2 for of_source in differences.values()):
        return paired_error(before, after)
    variances = [variance(of_source) * len(of_source) for of_source in differences.values()]
    return math.sqrt(math.fsum(variances)) / len(before)


def perplexity_interval(loss: float, error: float | None) -> list[float] | None:
    """The 95 % interval of exp(loss): the ends of the loss's own interval, through exp."""
    if error is None or loss + NORMAL_95 * error > 700:
        return None
    return [math.exp(loss - NORMAL_95 * error), math.exp(loss + NORMAL_95 * error)]
