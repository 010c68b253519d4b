"""Perplexity of a causal language model: on sequences, sliding windows or single documents."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grasp_deploy.data import Blocks, Documents
from grasp_deploy.evaluate.losses import OnBatch, not_finite, window_losses
from grasp_deploy.evaluate.windows import Window, block_windows, document_windows, sliding_windows
from grasp_deploy.stats.clustered import clustered_error, perplexity_interval

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood per predicted token, and the text it is of."""

    loss_nats_per_token: float
    standard_error: float | None  # of that loss; None for a single sequence or document
    tokens: int
    tokens_counted: str
    bytes: int | None  # of the scored tokens; None where no tokenizer was given
    cluster_losses: list[float]  # mean of each sequence or document
    document_losses: list[float] | None  # the same, where documents were taken alone
    data: dict[str, Any]
    dtype: str
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss_nats_per_token)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the scored text, comparable across tokenizers."""
        if not self.bytes:
            return None
        return self.loss_nats_per_token * self.tokens / math.log(2) / self.bytes

    def as_dict(self) -> dict[str, Any]:
        """The record that `evaluate perplexity --json` prints."""
        return {
            "perplexity": self.perplexity,
            "perplexity_interval": perplexity_interval(
                self.loss_nats_per_token, self.standard_error
            ),
            "tokens": self.tokens,
            "tokens_counted": self.tokens_counted,
            "data": self.data,
            "loss_nats_per_token": self.loss_nats_per_token,
            "standard_error": self.standard_error,
            "bits_per_byte": self.bits_per_byte,
            "bytes": self.bytes,
            **self._mean_over_documents(),
            "dtype": self.dtype,
            "seconds": self.seconds,
        }

    def _mean_over_documents(self) -> dict[str, Any]:
        """The mean of the documents' losses, each counted once, however long it is."""
        losses = self.document_losses
        if losses is None:
            return {}
        mean, error = math.fsum(losses) / len(losses), clustered_error(losses, [1] * len(losses))
        figures = {"loss_nats_per_token": mean, "standard_error": error}
        return {"mean_over_documents": {"perplexity": math.exp(mean), **figures}}


def perplexity(
    model: PreTrainedModel,
    blocks: Blocks,
    batch_size: int = 1,
    on_batch: OnBatch | None = None,
    *,
    stride: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Perplexity:
    """Perplexity of `model` on the text of `blocks`, in windows as long as a sequence.

    Without `stride` (1 to the sequences' length) the windows are the sequences. With a tokenizer,
    bits per byte too. Raises InputError as `window_losses` does, and where `exp` overflows.
    """
    sequences, length = blocks.token_ids.shape
    windows = block_windows(blocks.token_ids)
    counted = (
        f"positions 2 to {length} of each of {sequences} blocks of {length} tokens, every one "
        "given all before it in its block; no special tokens added"
    )
    if stride and stride < length:
        windows = sliding_windows(blocks.token_ids, stride)
        counted = (
            f"every token but the first of {sequences * length} tokens of running text, given the "
            f"{length - stride} to {length - 1} before it, in windows of {length} tokens (the "
            f"first window: all before it) that advance by {stride}; no special tokens added"
        )
    data = {**blocks.as_dict(), **({"stride": stride} if stride else {})}
    return _measure(model, windows, batch_size, on_batch, tokenizer, counted, data)


def document_perplexity(
    model: PreTrainedModel,
    documents: Documents,
    length: int,
    batch_size: int = 1,
    on_batch: OnBatch | None = None,
    *,
    stride: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Perplexity:
    """Perplexity of `model` on documents, each alone; long ones in windows of `length` tokens.

    The mean runs over tokens; `document_losses` has each document's own. Errors as `perplexity`.
    """
    windows = document_windows(documents.token_ids, length, stride or length)
    counted = (
        f"the tokens of each document ({len(documents.token_ids)} in all) but its first, every one "
        f"given those before it in its document; documents over {length} tokens in windows of "
        f"{length} that advance by {stride or length}; no special tokens added"
    )
    data = {**documents.as_dict(), "sequence_length": length, "stride": stride or length}
    return _measure(
        model, windows, batch_size, on_batch, tokenizer, counted, data, of_documents=True
    )


def _measure(
    model: PreTrainedModel,
    windows: Sequence[Window],
    batch_size: int,
    on_batch: OnBatch | None,
    tokenizer: PreTrainedTokenizerBase | None,
    counted: str,
    data: dict[str, Any],
    of_documents: bool = False,
) -> Perplexity:
    started = time.perf_counter()
    losses = window_losses(model, windows, batch_size, on_batch)
    summed, tokens = _by_cluster(windows, losses)
    loss = math.fsum(summed) / sum(tokens)
    if loss > math.log(torch.finfo(torch.float64).max):
        raise not_finite(loss, f"all {len(windows)} blocks")
    means = [total / count for total, count in zip(summed, tokens, strict=True)]
    return Perplexity(
        loss_nats_per_token=loss,
        standard_error=clustered_error(summed, tokens),
        tokens=sum(tokens),
        tokens_counted=counted,
        bytes=scored_bytes(tokenizer, windows) if tokenizer else None,
        cluster_losses=means,
        document_losses=means if of_documents else None,
        data=data,
        dtype=str(model.dtype).removeprefix("torch."),
        seconds=time.perf_counter() - started,
    )


def _by_cluster(
    windows: Sequence[Window], losses: Sequence[float]
) -> tuple[list[float], list[int]]:
    summed: dict[int, float] = {}
    tokens: dict[int, int] = {}
    for window, loss in zip(windows, losses, strict=True):
        summed[window.cluster] = summed.get(window.cluster, 0.0) + loss
        tokens[window.cluster] = tokens.get(window.cluster, 0) + window.scored
    return list(summed.values()), list(tokens.values())


def scored_bytes(tokenizer: PreTrainedTokenizerBase, windows: Sequence[Window]) -> int:
    """UTF-8 bytes that the scored tokens add to the text of the unscored ones before them.

    A character that a window's scored tokens only begin or end counts as the three bytes of the
    replacement character that it is decoded to.
    """
    total = 0
    for window in windows:
        ids = window.token_ids.tolist()
        before, whole = tokenizer.batch_decode([ids[: len(ids) - window.scored], ids])
        total += len(whole.encode()) - len(before.encode())
    return total
