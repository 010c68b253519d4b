"""Figures that papers print for LLaMA-2-7B, each with its source and the setting it was taken in.

A figure is here only if it was found written down; sources that are not the paper itself are named
second-hand. Of GRASPrune's tables 1 and 2 little is quoted elsewhere: fill in the rest from the
paper (arXiv 2604.19398), which also decides where this page and it disagree. Left out were figures
that only one summary quotes, or without their model and budget.
"""

from __future__ import annotations

from dataclasses import dataclass

AVERAGE = "average"


@dataclass(frozen=True)
class Figure:
    """What a method reaches at a budget: perplexity by corpus, accuracy in percent by task."""

    method: str
    keep: float
    values: dict[str, float]
    source: str = ""  # where it is not the table's own


@dataclass(frozen=True)
class Task:
    """A task by lm-eval's name. `tokens_millions` is a rough size, for a prediction of hours."""

    name: str
    tokens_millions: float
    examples: int | None = None  # in the prompt; None: the task's own number


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its budgets, its setting in words and as options, and its figures."""

    name: str
    source: str
    sparsity_means: str
    setting: str
    keeps: tuple[float, ...]  # shares of the prunable weights
    calibration: str  # a text for --calibration
    sequences: int
    sequence_length: int  # of calibration
    corpora: dict[str, str]
    evaluation_length: int
    tasks: tuple[Task, ...]
    metric: str  # of tasks that have it; of the others acc
    columns: tuple[str, ...]  # corpora, tasks and their average, as the table has them
    figures: tuple[Figure, ...]


TYR_KEEPS = (0.875, 0.75, 0.625, 0.5)
# WikiText-2 perplexity and average accuracy of LLaMA-2-7B at these four, in the table's order.
TYR_FIGURES = {
    "ShortGPT": ((8.86, 53.27), (23.41, 46.68), (70.96, 43.66), (226.40, 36.99)),
    "LaCO+": ((7.52, 53.23), (18.84, 45.47), (87.77, 41.55), (256.71, 34.89)),
    "SliceGPT": ((8.25, 55.89), (16.84, 51.40), (35.10, 43.80), (65.34, 39.43)),
    "Wanda-sp": ((6.24, 55.40), (9.21, 49.92), (19.97, 40.45), (122.28, 32.26)),
    "LLM-Pruner": ((6.11, 53.38), (11.56, 44.09), (37.75, 35.96), (117.40, 31.70)),
    "ZipLM": ((5.86, 55.85), (7.49, 52.59), (12.13, 47.53), (32.91, 32.60)),
    "OSSCAR": ((5.94, 55.29), (7.46, 51.99), (11.28, 47.42), (28.41, 39.46)),
    "FLAP": ((6.11, 54.63), (8.31, 49.36), (12.41, 43.51), (25.49, 39.84)),
    "Týr-the-Pruner": ((5.84, 56.98), (7.51, 54.64), (10.29, 52.21), (16.17, 47.41)),
}
TYR = PublishedTable(
    name="tyr",
    source="Týr-the-Pruner, table 1 (arXiv 2503.09657v4, NeurIPS 2025)",
    sparsity_means=(
        "share removed of attention heads and FFN channels, each kind alike; embeddings and head "
        "stay whole"
    ),
    setting=(
        "4M tokens of FineWeb-Edu, sequences of 4096, for all its methods. Perplexity: the test "
        "text of WikiText-2 in sequences of 4096, no special tokens. Accuracy: acc (not stated; "
        "its dense figures are those of acc), MMLU with 5 examples, the others with none; "
        "lm-eval's release is not stated"
    ),
    keeps=TYR_KEEPS,
    calibration="fineweb-edu",
    sequences=1024,
    sequence_length=4096,
    corpora={"wikitext2": "wikitext2"},
    evaluation_length=4096,
    tasks=(
        Task("arc_easy", 0.4),
        Task("arc_challenge", 0.2),
        Task("boolq", 0.5),
        Task("hellaswag", 4.4),
        Task("openbookqa", 0.1),
        Task("rte", 0.1),
        Task("winogrande", 0.1),
        Task("mmlu", 10.0, examples=5),
    ),
    metric="acc",
    columns=("wikitext2", AVERAGE),
    figures=(
        Figure("dense", 1.0, {"wikitext2": 5.12, AVERAGE: 57.96}),
        *(
            Figure(method, keep, {"wikitext2": perplexity, AVERAGE: accuracy})
            for method, cells in TYR_FIGURES.items()
            for keep, (perplexity, accuracy) in zip(TYR_KEEPS, cells, strict=True)
        ),
    ),
)

PAPER_TASKS = ("piqa", "winogrande", "hellaswag", "arc_easy", "arc_challenge")
GRASPRUNE = PublishedTable(
    name="grasprune",
    source="GRASPrune, tables 1 and 2 (arXiv 2604.19398v1, ACL 2026)",
    sparsity_means="share removed of the cost of FFN channels and KV groups together, in weights",
    setting=(
        "512 sequences of 512 tokens of WikiText-2's training text, 4 epochs. Perplexity: test "
        "texts in sequences of 2048, C4 of 2,000 validation documents, one <s> before each corpus. "
        "Accuracy: acc_norm where a task has it, no examples, lm-eval 0.4.1. All as in the "
        "authors' code, github.com/ZiY-Wang/GRASPrune"
    ),
    keeps=(0.8, 0.6, 0.5, 0.4),
    calibration="wikitext2",
    sequences=512,
    sequence_length=512,
    corpora={"wikitext2": "wikitext2", "ptb": "ptb", "c4": "c4@validation[:2000]"},
    evaluation_length=2048,
    tasks=tuple(map(Task, PAPER_TASKS, (0.2, 0.1, 4.4, 0.4, 0.2))),
    metric="acc_norm",
    columns=("wikitext2", "ptb", "c4", *PAPER_TASKS, AVERAGE),
    figures=(
        Figure("GRASPrune", 0.5, {"wikitext2": 12.18}, "its abstract"),
        Figure(
            "GRASPrune",
            0.8,
            {"ptb": 48.18, "piqa": 74.05},
            "its table 1, second-hand: two summaries of it agree",
        ),
    ),
)
TABLES = {table.name: table for table in (TYR, GRASPRUNE)}
