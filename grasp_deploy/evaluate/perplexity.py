"""Perplexity of a causal language model: on sequences, sliding windows or single documents."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from grasp_deploy.checkpoint.read.loading import check_tokens
from grasp_deploy.data import Blocks, Documents
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.windows import Window, document_windows, sequence_windows
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.stats.clustered import clustered_error, perplexity_interval

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LARGEST_LOSS = math.log(torch.finfo(torch.float64).max)
POSITIONS_IN_FLOAT32 = 256  # 128 MiB of logits at a vocabulary of 128k


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood per predicted token, and the text it is of."""

    loss_nats_per_token: float
    standard_error: float | None  # of that loss; None for a single sequence or document
    tokens: int
    tokens_counted: str
    bytes: int | None  # of the scored tokens; None where no tokenizer was given
    cluster_losses: list[float]  # mean of each sequence or document
    of_documents: bool
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
        loss, error = self.loss_nats_per_token, self.standard_error
        record = {
            "perplexity": self.perplexity,
            "perplexity_interval": perplexity_interval(loss, error),
            "tokens": self.tokens,
            "tokens_counted": self.tokens_counted,
            "data": self.data,
            "loss_nats_per_token": loss,
            "standard_error": error,
            "bits_per_byte": self.bits_per_byte,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "seconds": self.seconds,
        }
        if self.of_documents:  # each counted once, however long it is
            mean = math.fsum(self.cluster_losses) / len(self.cluster_losses)
            record["mean_over_documents"] = {
                "perplexity": math.exp(mean),
                "loss_nats_per_token": mean,
                "standard_error": clustered_error(
                    self.cluster_losses, [1] * len(self.cluster_losses)
                ),
            }
        return record


def perplexity(
    model: PreTrainedModel,
    text: Blocks | Documents,
    batch_size: int = 1,
    on_progress: OnProgress = ignore_progress,
    *,
    stride: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stage: str = "perplexity",
) -> Perplexity:
    """Perplexity of a `model` in eval mode, in windows of the text's sequence length.

    Windows advance by `stride`, by default their length. Documents are taken each alone, and the
    mean runs over their tokens. With a tokenizer, bits per byte too. `on_progress` gets a row with
    the mean loss so far after each batch. Raises InputError for text that does not fit the model,
    and for a loss that is not finite or has no finite exponential.
    """
    started = time.perf_counter()
    windows, counted, data = _windows(text, stride)
    config = model.config.to_dict()
    for window in windows:
        check_tokens(window.token_ids[None], config)
    summed: dict[int, float] = defaultdict(float)
    tokens: dict[int, int] = defaultdict(int)
    done = 0
    for batch, losses in _losses(model, windows, batch_size):
        for window, loss in zip(batch, losses, strict=True):
            summed[window.cluster] += loss
            tokens[window.cluster] += window.scored
        done += len(batch)
        mean = math.fsum(summed.values()) / sum(tokens.values())
        if not mean < LARGEST_LOSS:
            raise InputError(
                f"the loss is {mean:.3g} after {done} of {len(windows)} windows, so there is no "
                "perplexity: the weights are broken or overflow their dtype; try --dtype float32, "
                "and check the model with `grasp-deploy verify`"
            )
        on_progress({"stage": stage, "step": done, "steps": len(windows), "loss": mean})
    return Perplexity(
        loss_nats_per_token=mean,
        standard_error=clustered_error(list(summed.values()), list(tokens.values())),
        tokens=sum(tokens.values()),
        tokens_counted=counted,
        bytes=scored_bytes(tokenizer, windows) if tokenizer else None,
        cluster_losses=[summed[cluster] / tokens[cluster] for cluster in summed],
        of_documents=isinstance(text, Documents),
        data=data,
        dtype=str(model.dtype).removeprefix("torch."),
        seconds=time.perf_counter() - started,
    )


def _windows(
    text: Blocks | Documents, stride: int | None
) -> tuple[list[Window], str, dict[str, Any]]:
    """The windows of a text, which of its tokens they score in words, and the text's record."""
    if isinstance(text, Documents):
        length, count = text.sequence_length, len(text.running_texts)
        stride = stride or length
        counted = (
            f"the tokens of each document ({count} in all) but its first, every one given those "
            f"before it in its document; documents over {length} tokens in windows of {length} "
            f"that advance by {stride}; no special tokens added"
        )
        return document_windows(text, stride), counted, {**text.as_dict(), "stride": stride}
    sequences, length = text.token_ids.shape
    counted = (
        f"positions 2 to {length} of each of {sequences} sequences of {length} tokens, every one "
        "given all before it in its sequence; no special tokens added"
    )
    if stride and stride < length:
        counted = (
            f"every token but the first of {sequences * length} tokens of running text, given the "
            f"{length - stride} to {length - 1} before it, in windows of {length} tokens (the "
            f"first window: all before it) that advance by {stride}; no special tokens added"
        )
    data = {**text.as_dict(), **({"stride": stride} if stride else {})}
    return sequence_windows(text, stride or length), counted, data


@torch.no_grad()
def _losses(
    model: PreTrainedModel, windows: Sequence[Window], batch_size: int
) -> Iterator[tuple[Sequence[Window], list[float]]]:
    """Batches with each window's summed negative log-likelihood in nats of its scored tokens.

    Losses are computed in float32 and summed in float64; float32 copies of logits stay a slice in
    size. Shorter windows are filled up behind: nothing looks back there.
    """
    assert not model.training, "perplexity is measured in eval mode"
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        ids = pad_sequence([window.token_ids for window in batch], batch_first=True)
        ids = ids.to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits  # (b, T, V) in the model's dtype
        losses = []
        for row, window in enumerate(batch):
            end = len(window.token_ids)
            start = end - window.scored
            targets = ids[row, start:end].to(logits.device).split(POSITIONS_IN_FLOAT32)
            predictions = logits[row, start - 1 : end - 1].split(POSITIONS_IN_FLOAT32)
            total = 0.0
            for some_logits, some_targets in zip(predictions, targets, strict=True):
                part = cross_entropy(some_logits.float(), some_targets, reduction="none")
                total += part.cpu().double().sum().item()  # not every device has float64
            losses.append(total)
        yield batch, losses


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
