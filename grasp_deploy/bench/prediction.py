"""Measured sizes against their prediction."""

from __future__ import annotations

TOLERANCE = 0.005  # of weights and KV cache, which config.json determines
AS_PREDICTED, NOT_AS_PREDICTED = "as predicted", "not as predicted"


def relative_error(measured: float, predicted: float) -> float:
    """Measured over predicted, less 1; negative if the measured size is smaller."""
    if predicted == measured:
        return 0.0
    return measured / predicted - 1 if predicted else float("inf")


def prediction_outcome(error: float) -> str:
    """The outcome for a relative error of weights or KV cache."""
    return AS_PREDICTED if abs(error) <= TOLERANCE else NOT_AS_PREDICTED
