"""Cells and notes of the quality tables, in a model card and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grasp_deploy.checkpoint.card.quality_verdict import excess_loss, seen
from grasp_deploy.stats.wording import plus_minus

MARK = "†"
ERRORS_ARE = (
    "±: one standard error; of what was lost it is paired, sequence by sequence, item by item."
)
CORPUS_HEAD = ("perplexity on", "tokens", "dense", "pruned", "lost, nats per token")
MODELS = ("dense", "pruned")
TASK_HEAD = ("accuracy, %, on", "items", "chance", *MODELS, "change")

Row = Mapping[str, Any]


def mark_means(quality: Mapping[str, Any]) -> str:
    """Note under a table in which a corpus is marked."""
    how = seen(bool(quality.get("healed_on")))
    return f"{MARK} The model was {how} this corpus, or a part of it, so it does not count."


def corpus_cells(row: Row) -> list[str]:
    """One row of the table under `CORPUS_HEAD`."""
    before, after = row["dense"]["perplexity"], row["pruned"]["perplexity"]
    split = f" ({row['split']})" if row["split"] else ""
    return [
        f"{row['name']}{split}{MARK * row['calibrated_on']}",
        f"{row['tokens']:,} in sequences of {row['sequence_length']:,}",
        f"{before:,.2f}",
        f"{after:,.2f}",
        plus_minus(excess_loss(before, after), row["excess_error"], ".3f"),
    ]


def task_cells(row: Row) -> list[str]:
    """One row of the table under `TASK_HEAD`."""
    shots = f", {row['num_fewshot']} examples" if row["num_fewshot"] else ""
    return [
        f"{row['task']} ({row['metric']}{shots})",
        f"{row['items']:,}",
        f"{100 * row['chance']:.1f}",
        *(_percent(row[model]["accuracy"], row[model]["standard_error"]) for model in MODELS),
        _percent(row["change"], row["change_error"], "+"),
    ]


def _percent(share: float, error: float | None, sign: str = "") -> str:
    return plus_minus(100 * share, None if error is None else 100 * error, ".1f", sign)
