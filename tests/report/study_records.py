"""Records of studies as `benchmarks/quality.py` writes them, with made-up figures: test data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.records import Record, record

DENSE_PERPLEXITY = 8.0
DENSE_LAYERS = [[10, 4], [20, 4]]
Losses = Mapping[str, Mapping[float, Sequence[float]]]  # by variant and budget, one a seed
LOSSES: Losses = {
    "default": {0.8: [0.02, 0.04], 0.5: [0.2, 0.3]},
    "flap": {0.8: [0.1, 0.1], 0.5: [0.9, 1.1]},
}


def study_record(losses: Losses = LOSSES, corpora: Sequence[str] = ("c4",)) -> Record:
    """One row for each loss in nats, the same on every corpus."""
    rows = [
        study_row(variant, keep, seed, nats, corpora)
        for variant, by_budget in losses.items()
        for keep, of_seeds in by_budget.items()
        for seed, nats in enumerate(of_seeds)
    ]
    dense = dict.fromkeys(corpora, DENSE_PERPLEXITY)
    made = record("study", [], study="methods", dense_perplexity=dense, rows=rows)
    del made["models"]
    return {**made, "dense_layers": DENSE_LAYERS}


def study_row(
    variant: str, keep: float, seed: int, nats: float, corpora: Sequence[str]
) -> dict[str, Any]:
    """The first seed keeps 4 and 12 channels, the second 6 and 12; both keep 2 and 4 groups."""
    return {
        **{"variant": variant, "keep": keep, "seed": seed},
        "perplexity": dict.fromkeys(corpora, DENSE_PERPLEXITY * math.exp(nats)),
        "excess_nats": dict.fromkeys(corpora, nats),
        "kept_cost_share": keep,
        "kept_ffn_share": (16 + 2 * seed) / 30,
        "kept_kv_share": 6 / 8,
        "kept_per_layer": [[4 + 2 * seed, 2], [12, 4]],
        "heldout_loss": {"heldout_dense": 2.0, "heldout_pruned": 2.0 + nats},
        "seconds": {"start": 10.0 + 2 * seed, "scales": 5.5},
    }


def with_tasks(made: Record, tasks: Mapping[str, str], accuracies: Sequence[float]) -> Record:
    """Tasks and their metrics: the dense model has the first accuracy, the rows the next ones."""
    dense, *others = (_on_tasks(tasks, accuracy) for accuracy in accuracies)
    made |= {"dense_tasks": dense["tasks"], "dense_task_average": dense["task_average"]}
    for row, other in zip(made["rows"], others, strict=False):
        row |= other
    return made


def _on_tasks(tasks: Mapping[str, str], first: float) -> dict[str, Any]:
    """Each task but the first has 0.1 more than the one before it; errors are 0.03."""
    found = {
        name: {"metric": metric, "accuracy": first + 0.1 * index, "standard_error": 0.03}
        for index, (name, metric) in enumerate(tasks.items())
    }
    mean = first + 0.05 * (len(tasks) - 1)
    return {
        "tasks": found,
        "task_average": {"accuracy": mean, "standard_error": 0.03 / math.sqrt(len(tasks))},
    }


def with_allocation(row: dict[str, Any], ffn_share: float, scores: Sequence[float | None]) -> None:
    """What the kept budget of a row goes to, and the mean scores of both kinds."""
    row |= {"ffn_share_of_kept_cost": ffn_share, "kv_share_of_kept_cost": 1 - ffn_share}
    row |= {"mean_kept_ffn_score": scores[0], "mean_kept_kv_score": scores[1]}
