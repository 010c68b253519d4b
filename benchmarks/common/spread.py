"""Median and quartiles of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and the samples themselves, as records have them."""
    lower, median, upper = numpy.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return {"median": median, "quartiles": [lower, upper], "samples": list(samples)}
