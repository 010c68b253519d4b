"""Rows of a quality record, made of the figures that matter to a test."""

import math
from typing import Any

DENSE_PERPLEXITY = 8.0


def corpus(
    name: str, excess: float, calibrated_on: bool = False, error: float | None = 1e-12
) -> dict[str, Any]:
    """A corpus on which the pruned model loses `excess` nats per token more."""
    return {
        "name": name,
        "split": "test",
        "calibrated_on": calibrated_on,
        "calibrated_on_share": float(calibrated_on),
        "sequences": 80,
        "tokens": 20_470,
        "sequence_length": 2048,
        "dense": {"perplexity": DENSE_PERPLEXITY},
        "pruned": {"perplexity": DENSE_PERPLEXITY * math.exp(excess)},
        "excess_error": error,
    }


def task(name: str, dense: float, pruned: float, **changes: Any) -> dict[str, Any]:
    """A task of four choices, with an error of one point for each model and for the change."""
    row = {
        "task": name,
        "metric": "acc_norm",
        "num_fewshot": 0,
        "items": 2500,
        "chance": 0.25,
        "dense": {"accuracy": dense, "standard_error": 0.01},
        "pruned": {"accuracy": pruned, "standard_error": 0.01},
        "change": pruned - dense,
        "change_error": 0.01,
    }
    return {**row, **changes}
