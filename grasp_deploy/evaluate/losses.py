"""Negative log-likelihoods of windows of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.windows import Window, padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OnBatch = Callable[[int, int, float], None]  # windows done, windows in all, mean loss so far

POSITIONS_IN_FLOAT32 = 256  # 128 MiB of logits at a vocabulary of 128k


@torch.no_grad()
def window_losses(
    model: PreTrainedModel,
    windows: Sequence[Window],
    batch_size: int = 1,
    on_batch: OnBatch | None = None,
) -> list[float]:
    """Summed negative log-likelihood in nats of the scored tokens of each window.

    `model` is in eval mode. Losses are computed in float32 and summed in float64. After each batch
    `on_batch` is called. Raises InputError for windows that do not fit the model, and for a loss
    that is not finite.
    """
    assert not model.training, "perplexity is measured in eval mode"
    _check_fit(model, windows)
    losses: list[float] = []
    total, scored = 0.0, 0
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        losses += _losses(model, batch)
        total += sum(losses[first:])
        if not math.isfinite(total):
            raise not_finite(total, f"blocks {first} to {first + len(batch) - 1} (counted from 0)")
        scored += sum(window.scored for window in batch)
        if on_batch:
            on_batch(len(losses), len(windows), total / scored)
    return losses


def _losses(model: PreTrainedModel, batch: Sequence[Window]) -> list[float]:
    """The loss of each window of a batch; float32 copies of logits stay a slice in size."""
    token_ids = padded(batch).to(model.device)
    logits = model(input_ids=token_ids, use_cache=False).logits  # (b, T, V) in the model's dtype
    losses = []
    for row, window in enumerate(batch):
        end = len(window.token_ids)
        start = end - window.scored
        targets = token_ids[row, start:end].to(logits.device).split(POSITIONS_IN_FLOAT32)
        predictions = logits[row, start - 1 : end - 1].split(POSITIONS_IN_FLOAT32)
        total = 0.0
        for part_logits, part_targets in zip(predictions, targets, strict=True):
            part = cross_entropy(part_logits.float(), part_targets, reduction="none")
            total += part.cpu().double().sum().item()  # not every device has float64
        losses.append(total)
    return losses


def _check_fit(model: PreTrainedModel, windows: Sequence[Window]) -> None:
    longest = model.config.max_position_embeddings
    sequence_length = max(len(window.token_ids) for window in windows)
    if sequence_length > longest:
        raise InputError(
            f"blocks of {sequence_length} tokens are longer than the {longest} positions that the "
            f"model was made for; use --sequence-length {longest} or less"
        )
    vocabulary = model.config.vocab_size
    largest = max(int(window.token_ids.max()) for window in windows)
    if largest >= vocabulary:
        raise InputError(
            f"the tokenizer gave token {largest}, but the model's vocabulary has only {vocabulary} "
            "tokens; use the tokenizer that belongs to the model"
        )


def not_finite(loss: float, where: str) -> InputError:
    """The error for a loss without a finite exponential."""
    return InputError(
        f"the loss is {loss:.3g} on {where}, so there is no perplexity: the weights are broken or "
        "overflow their dtype; try --dtype float32, and check the model with `grasp-deploy verify`"
    )
