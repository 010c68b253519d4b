"""Perplexity of a causal language model on token blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from grasp_deploy.data import Blocks
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OnBatch = Callable[[int, float], None]

POSITIONS_IN_FLOAT32 = 256  # 128 MiB of logits at a vocabulary of 128k


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood per predicted token, and what it was taken over."""

    perplexity: float
    loss_nats_per_token: float
    tokens: int
    data: dict[str, Any]
    dtype: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The record that `evaluate perplexity --json` prints."""
        return {
            "perplexity": self.perplexity,
            "tokens": self.tokens,
            "tokens_counted": self.tokens_counted,
            "data": self.data,
            "loss_nats_per_token": self.loss_nats_per_token,
            "dtype": self.dtype,
            "seconds": self.seconds,
        }

    @property
    def tokens_counted(self) -> str:
        """One sentence on which tokens the mean runs over."""
        sequences, length = self.data["sequences"], self.data["sequence_length"]
        return (
            f"positions 2 to {length} of each of {sequences} blocks of {length} tokens, every one "
            "given all before it in its block; no special tokens added"
        )


def perplexity(
    model: PreTrainedModel, blocks: Blocks, batch_size: int = 1, on_batch: OnBatch | None = None
) -> Perplexity:
    """Perplexity of `model` on `blocks`: the exponential of `mean_loss`.

    Errors: those of `mean_loss`, and InputError for a loss beyond what `exp` can hold.
    """
    started = time.perf_counter()
    loss = mean_loss(model, blocks.token_ids, batch_size, on_batch)
    if loss > math.log(torch.finfo(torch.float64).max):
        raise _not_finite(loss, f"all {len(blocks.token_ids)} blocks")
    return Perplexity(
        perplexity=math.exp(loss),
        loss_nats_per_token=loss,
        tokens=_predicted(blocks.token_ids),
        data=blocks.as_dict(),
        dtype=str(model.dtype).removeprefix("torch."),
        seconds=time.perf_counter() - started,
    )


@torch.no_grad()
def mean_loss(
    model: PreTrainedModel,
    token_ids: torch.Tensor,
    batch_size: int = 1,
    on_batch: OnBatch | None = None,
) -> float:
    """Mean negative log-likelihood in nats over the T-1 predicted positions of each block.

    `token_ids` (n, T) int64; `model` is in eval mode. Losses are computed in float32 and summed in
    float64. After each batch `on_batch(blocks done, mean loss so far)` is called. Errors:
    InputError for blocks that do not fit the model, and for a loss that is not finite.
    """
    assert not model.training, "perplexity is measured in eval mode"
    _check_fit(model, token_ids)
    total, done = 0.0, 0
    for batch in token_ids.split(batch_size):
        total += _summed_loss(model, batch.to(model.device))
        if not math.isfinite(total):
            raise _not_finite(total, f"blocks {done} to {done + len(batch) - 1} (counted from 0)")
        done += len(batch)
        if on_batch:
            on_batch(done, total / _predicted(token_ids[:done]))
    return total / _predicted(token_ids)


def _summed_loss(model: PreTrainedModel, batch: torch.Tensor) -> float:
    """Sum of the losses of one batch (b, T); float32 copies of logits stay a slice in size."""
    logits = model(input_ids=batch, use_cache=False).logits  # (b, T, vocabulary) in model dtype
    total = 0.0
    for block_logits, block in zip(logits[:, :-1], batch[:, 1:], strict=True):
        for some_logits, targets in zip(
            block_logits.split(POSITIONS_IN_FLOAT32), block.split(POSITIONS_IN_FLOAT32), strict=True
        ):
            losses = cross_entropy(some_logits.float(), targets.to(logits.device), reduction="none")
            total += losses.cpu().double().sum().item()  # not every device has float64
    return total


def _predicted(token_ids: torch.Tensor) -> int:
    blocks, sequence_length = token_ids.shape
    return blocks * (sequence_length - 1)  # nothing stands before a block's first token


def _check_fit(model: PreTrainedModel, token_ids: torch.Tensor) -> None:
    longest, sequence_length = model.config.max_position_embeddings, token_ids.shape[1]
    if sequence_length > longest:
        raise InputError(
            f"blocks of {sequence_length} tokens are longer than the {longest} positions that the "
            f"model was made for; use --sequence-length {longest} or less"
        )
    vocabulary, largest = model.config.vocab_size, int(token_ids.max())
    if largest >= vocabulary:
        raise InputError(
            f"the tokenizer gave token {largest}, but the model's vocabulary has only {vocabulary} "
            "tokens; use the tokenizer that belongs to the model"
        )


def _not_finite(loss: float, where: str) -> InputError:
    return InputError(
        f"the loss is {loss:.3g} on {where}, so there is no perplexity: the weights are broken or "
        "overflow their dtype; try --dtype float32, and check the model with `grasp-deploy verify`"
    )
