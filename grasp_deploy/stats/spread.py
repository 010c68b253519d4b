"""Median and quartiles of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; all the same for one sample."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return lower, median, upper


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and the samples themselves, as records have them."""
    lower, median, upper = quartiles(samples)
    return {"median": median, "quartiles": [lower, upper], "samples": list(samples)}
