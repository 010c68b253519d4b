"""The figures of a drift record, from raw means, answers and lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.data.source import display_name
from grasp_deploy.evaluate.drift.record import Answers, Excess, Flips, TextDrift
from grasp_deploy.stats.clustered import clustered_error, paired_error


def text_drift(corpus: TextSource, blocks: Blocks, means: Tensor, calibrated_on: bool) -> TextDrift:
    """The row of a text from the `(n, 4)` means of `divergence.mean_drift`."""
    divergence, agreement, dense, pruned = means.T.tolist()
    sequences, length = blocks.token_ids.shape
    return TextDrift(
        name=corpus.label,
        source=display_name(corpus.what),
        split=corpus.split,
        calibrated_on=calibrated_on,
        sequences=sequences,
        sequence_length=length,
        tokens=sequences * (length - 1),
        token_ids_sha256=blocks.as_dict()["token_ids_sha256"],
        divergence=statistics.fmean(divergence),
        divergence_error=_error(divergence),
        agreement=statistics.fmean(agreement),
        agreement_error=_error(agreement),
        dense_loss=statistics.fmean(dense),
        pruned_loss=statistics.fmean(pruned),
        excess_loss=statistics.fmean(pruned) - statistics.fmean(dense),
        excess_error=paired_error(dense, pruned),
    )


def excess_over(texts: Sequence[TextDrift]) -> Excess:
    """The mean excess loss over kinds of text, each counted once, and the worst of them."""
    counted = [text for text in texts if not text.calibrated_on] or texts
    worst = max(counted, key=lambda text: text.excess_loss)
    errors = [text.excess_error for text in counted if text.excess_error is not None]
    return Excess(
        mean=statistics.fmean(text.excess_loss for text in counted),
        mean_error=math.hypot(*errors) / len(counted) if len(errors) == len(counted) else None,
        worst=worst.excess_loss,
        worst_text=worst.name,
        texts=len(counted),
    )


def flips_of(dense: Mapping[str, Any], pruned: Mapping[str, Any]) -> Flips:
    """The flips between two models' cells of `evaluate tasks` on the same items of one task."""
    metric = dense["metric"].partition(",")[0]
    pairs = zip(dense["items"], pruned["items"], strict=True)
    changes = [after[metric] - before[metric] for before, after in pairs]
    flipped = [float(change != 0) for change in changes]
    return Flips(
        task=dense["task"],
        metric=dense["metric"],
        items=len(changes),
        flips=statistics.fmean(flipped),
        flips_error=_error(flipped),
        right_to_wrong=statistics.fmean(float(change < 0) for change in changes),
        wrong_to_right=statistics.fmean(float(change > 0) for change in changes),
    )


def answers_of(
    dense: Sequence[int | None], pruned: Sequence[int | None], most_tokens: int
) -> Answers:
    """Lengths of both models' answers to the same prompts; None is one that never ended."""
    before, after = (
        [most_tokens if length is None else length for length in lengths]
        for lengths in (dense, pruned)
    )
    return Answers(
        prompts=len(dense),
        most_tokens=most_tokens,
        dense_length=statistics.fmean(before),
        pruned_length=statistics.fmean(after),
        change_error=paired_error(before, after),
        dense_unended=dense.count(None) / len(dense),
        pruned_unended=pruned.count(None) / len(pruned),
    )


def _error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for one value."""
    return clustered_error(values, [1] * len(values))
