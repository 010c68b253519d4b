"""Telling a difference from noise, with few repetitions and many comparisons.

Repetition i of every model ran side by side, so repetitions pair up and drifts of the machine
cancel. The interval of a ratio is mean ± half width of its log ratios, the wider of two:

- Student's t at 95 % on the comparison's own repetitions, which is wide where a point is noisy;
- Student's t on the noise pooled over all comparisons of the record, at 95 % for all of them
  together (Bonferroni). So neither three samples that happen to lie close
  nor the number of comparisons makes a false claim.

A difference is claimed if its interval excludes 1 and it is at least 2 %. Two repetitions tell next
to nothing of noise, so nothing is claimed of fewer than three.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
SMALLEST_RATIO = 1.02  # what is closer to 1 makes no difference to anybody
FASTER, SLOWER = "faster", "slower"
NO_DIFFERENCE = "no difference beyond noise"
UNDECIDED = "undecided"
FEWEST = 3  # repetitions, below which nothing is claimed
TOO_FEW = "too few repetitions for a verdict (n={}): repeat at least 3 times"


@dataclass(frozen=True)
class Difference:
    """A ratio of rates, over 1 if the second model is faster, with its interval."""

    ratio: float
    interval: tuple[float, float] | None  # None where the outcome is UNDECIDED
    outcome: str


def differences(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Difference]:
    """Judge all comparisons of a record, each given as the paired rates of two models."""
    samples = [
        [math.log(after / before) for before, after in zip(*rates, strict=True)] for rates in pairs
    ]
    if min(map(len, samples), default=0) < FEWEST:
        return [Difference(math.exp(statistics.fmean(r)), None, UNDECIDED) for r in samples]
    freedom = sum(len(ratios) - 1 for ratios in samples)
    squares = sum(statistics.variance(ratios) * (len(ratios) - 1) for ratios in samples)
    pooled = math.sqrt(squares / freedom) * t_quantile(1 - CONFIDENCE, freedom, len(samples))
    return [_difference(ratios, pooled) for ratios in samples]


def _difference(ratios: Sequence[float], pooled: float) -> Difference:
    """Judge the log ratios of one comparison; `pooled` is the half width for one repetition."""
    own = statistics.stdev(ratios) * t_quantile(1 - CONFIDENCE, len(ratios) - 1)
    mean, half_width = statistics.fmean(ratios), max(pooled, own) / math.sqrt(len(ratios))
    outcome = NO_DIFFERENCE
    if abs(mean) > half_width and abs(mean) >= math.log(SMALLEST_RATIO):
        outcome = FASTER if mean > 0 else SLOWER
    interval = math.exp(mean - half_width), math.exp(mean + half_width)
    return Difference(math.exp(mean), interval, outcome)


def of_repetitions(repetitions: int) -> str:
    """A figure's note on its repetitions; below three, that they are too few for a verdict."""
    few = TOO_FEW.format(repetitions)
    return few if repetitions < FEWEST else f"median of {repetitions} repetitions"


@cache
def t_quantile(error: float, freedom: int, comparisons: int = 1) -> float:
    """The bound that |t| exceeds with probability `error / comparisons`, by bisection to 1e-9."""
    wanted = error / comparisons
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > wanted:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > wanted else (low, middle)
    return high


def two_sided(t: float, freedom: int) -> float:
    """Probability that Student's t exceeds `t` in size (Abramowitz and Stegun, 26.7.3-26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= cosine**2 * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 1 - inside
