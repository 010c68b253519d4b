"""Studies as `benchmarks.quality` records them, with made-up figures: test data."""

import math
from collections.abc import Mapping, Sequence

from benchmarks.study.record import Accuracy, Row, Study, TaskAccuracy, Tasks

DENSE_PERPLEXITY = 8.0
Losses = Mapping[str, Mapping[float, Sequence[float]]]  # by variant and budget, one for each seed
LOSSES: Losses = {
    "default": {0.8: [0.02, 0.04], 0.5: [0.2, 0.3]},
    "flap": {0.8: [0.1, 0.1], 0.5: [0.9, 1.1]},
}


def study(losses: Losses = LOSSES, corpora: Sequence[str] = ("c4",), model: str = "") -> Study:
    """One row for each loss in nats, the same on every corpus."""
    return Study(
        schema_version=1,
        benchmark="study",
        command="python -m benchmarks.quality methods",
        created="2026-01-02T03:04:05+00:00",
        machine={"processor": "Test Processor 9000", "cores": 16},
        versions={"grasp_deploy": "0.0.0"},
        settings={"model": model} if model else {},
        study="methods",
        dense_perplexity=dict.fromkeys(corpora, DENSE_PERPLEXITY),
        dense_layers=[(10, 4), (20, 4)],
        rows=[
            row(variant, keep, seed, nats, corpora)
            for variant, by_budget in losses.items()
            for keep, of_seeds in by_budget.items()
            for seed, nats in enumerate(of_seeds)
        ],
    )


def row(variant: str, keep: float, seed: int, nats: float, corpora: Sequence[str]) -> Row:
    """The first seed keeps 4 and 12 channels, the second 6 and 12; both keep 2 and 4 groups."""
    return Row(
        variant=variant,
        options={"rounds": 5, "scale_epochs": 1},
        keep=keep,
        seed=seed,
        perplexity=dict.fromkeys(corpora, DENSE_PERPLEXITY * math.exp(nats)),
        excess_nats=dict.fromkeys(corpora, nats),
        kept_cost_share=keep,
        kept_ffn_share=(16 + 2 * seed) / 30,
        kept_kv_share=6 / 8,
        kept_per_layer=[(4 + 2 * seed, 2), (12, 4)],
        heldout_loss={"heldout_dense": 2.0, "heldout_pruned": 2.0 + nats},
        seconds={"start": 10.0 + 2 * seed, "scales": 5.5},
    )


def with_tasks(made: Study, metrics: Mapping[str, str], accuracies: Sequence[float]) -> Study:
    """Add tasks: the dense model has the first accuracy, the rows the next ones."""
    dense, *others = (_on_tasks(metrics, accuracy) for accuracy in accuracies)
    made.dense_tasks, made.dense_task_average = dense
    for one, other in zip(made.rows, others, strict=False):
        one.tasks, one.task_average = other
    return made


def _on_tasks(metrics: Mapping[str, str], first: float) -> tuple[Tasks, Accuracy]:
    """Each task but the first has 0.1 more than the one before it; errors are 0.03."""
    tasks = {
        name: TaskAccuracy(first + 0.1 * index, 0.03, metric=metric)
        for index, (name, metric) in enumerate(metrics.items())
    }
    return tasks, Accuracy(first + 0.05 * (len(tasks) - 1), 0.03 / math.sqrt(len(tasks)))


def with_allocation(one: Row, ffn_share: float, scores: Sequence[float | None]) -> None:
    """Add what the kept budget of a row goes to, and the mean scores of both kinds."""
    one.ffn_share_of_kept_cost, one.kv_share_of_kept_cost = ffn_share, 1 - ffn_share
    one.mean_kept_ffn_score, one.mean_kept_kv_score = scores
