"""Median and quartiles of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and the samples themselves."""
    if len(samples) == 1:
        return {"median": samples[0], "quartiles": [samples[0]] * 2, "samples": list(samples)}
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median": median, "quartiles": [lower, upper], "samples": list(samples)}
