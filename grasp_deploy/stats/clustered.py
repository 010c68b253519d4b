"""Sampling error of a mean loss: another text of the same kind would have given another.

Losses of neighbouring tokens are alike, so tokens are not independent samples; sequences nearly
are. The error is that of a mean over sequences.
"""

import math
from collections.abc import Sequence
from statistics import stdev, variance


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for one value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def error_of_mean(errors: Sequence[float | None]) -> float | None:
    """Standard error of a mean of independent figures, from theirs; None if one is unknown."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) / len(known) if len(known) == len(errors) else None


def paired_error(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Standard error of the mean of `after - before`, mean losses of the same sequences.

    Sequences hard for one are hard for both, so it is far below the error of either. None for one.
    """
    return standard_error([b - a for a, b in zip(before, after, strict=True)])


def stratified_error(
    before: Sequence[float], after: Sequence[float], strata: Sequence[int]
) -> float | None:
    """As `paired_error`, for sequences from several sources in fixed shares.

    Only differences between sequences of one source are sampling error, not those between sources.
    A source of one sequence shows none, so then all count as one source.
    """
    differences: dict[int, list[float]] = {}
    for first, second, stratum in zip(before, after, strata, strict=True):
        differences.setdefault(stratum, []).append(second - first)
    if any(len(of_source) < 2 for of_source in differences.values()):
        return paired_error(before, after)
    variances = [variance(of_source) * len(of_source) for of_source in differences.values()]
    return math.sqrt(math.fsum(variances)) / len(before)
