"""Perplexity of a causal language model: on sequences, sliding windows or single documents.

A window is a run of tokens of one text; its last `scored` tokens are predicted, each from all
before it in the window. Windows that advance by less than their length give each scored token more
to go by. The price is that most tokens run more than once:

    length 6, stride 2     0 1 2 3 4 5            scores 1 2 3 4 5
                               2 3 4 5 6 7        scores 6 7
                                   4 5 6 7 8 9    scores 8 9
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from grasp_deploy.checkpoint.read.loading import check_tokens
from grasp_deploy.data import Blocks, Documents
from grasp_deploy.data.tokenizing import readable_failures
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.stats.clustered import clustered_error, perplexity_interval

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LARGEST_LOSS = math.log(torch.finfo(torch.float64).max)
POSITIONS_IN_FLOAT32 = 256  # 128 MiB of logits at a vocabulary of 128k


@dataclass(frozen=True)
class Window:
    """Tokens `(T,)` int64, the number scored at the end, and their sequence or document.

    Losses of one cluster are pooled in the standard error, since neighbouring tokens are alike.
    """

    token_ids: Tensor
    scored: int
    cluster: int


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood per predicted token, and the text it is of."""

    loss_nats_per_token: float
    standard_error: float | None  # of that loss; None for a single sequence or document
    tokens: int
    tokens_counted: str
    bytes: int | None  # of the scored tokens; None where no tokenizer was given
    cluster_losses: list[float]  # mean of each sequence or document
    cluster_tokens: list[int]  # scored in each
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
        """The figures of a record of `evaluate perplexity`."""
        loss, error, means = self.loss_nats_per_token, self.standard_error, self.cluster_losses
        record: dict[str, Any] = {
            "perplexity": self.perplexity,
            "perplexity_interval": perplexity_interval(loss, error),
            "bits_per_byte": self.bits_per_byte,
            **asdict(self),
        }
        del record["cluster_losses"], record["cluster_tokens"]
        if record.pop("of_documents"):  # each counted once, however long it is
            mean = math.fsum(means) / len(means)
            record["mean_over_documents"] = {
                "perplexity": math.exp(mean),
                "loss_nats_per_token": mean,
                "standard_error": clustered_error(means, [1] * len(means)),
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
    data, config = text.as_dict(), model.config.to_dict()
    data["stride"] = stride or data["sequence_length"]
    windows = windows_of(text, data["sequence_length"], data["stride"])
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
        tokens_counted=_counted(data),
        bytes=scored_bytes(tokenizer, windows) if tokenizer else None,
        cluster_losses=[summed[cluster] / tokens[cluster] for cluster in summed],
        cluster_tokens=[tokens[cluster] for cluster in summed],
        of_documents=isinstance(text, Documents),
        data=data,
        dtype=str(model.dtype).removeprefix("torch."),
        seconds=time.perf_counter() - started,
    )


def _counted(data: dict[str, Any]) -> str:
    """The tokens that are scored, and those before them that each is given."""
    length, stride, count = data["sequence_length"], data["stride"], data.get("sequences")
    if count is None:
        words = (
            f"the tokens of each document ({data['documents']} in all) but its first, every one "
            f"given those before it in its document; documents over {length} tokens in windows of "
            f"{length} that advance by {stride}"
        )
    elif stride < length:
        words = (
            f"every token but the first of {count * length} tokens of running text, given the "
            f"{length - stride} to {length - 1} before it, in windows of {length} tokens (the "
            f"first window: all before it) that advance by {stride}"
        )
    else:
        words = (
            f"positions 2 to {length} of each of {count} sequences of {length} tokens, every one "
            "given all before it in its sequence"
        )
    return f"{words}; no special tokens added"


def windows_of(text: Blocks | Documents, length: int, stride: int) -> list[Window]:
    """Windows of `length` tokens, `stride` apart, over running text or each document alone.

    A window of running text belongs to the sequence in which it ends. A stride of a sequence's
    length gives the sequences themselves.
    """
    alone = isinstance(text, Documents)
    return [
        Window(ids[start:end], scored, index if alone else (end - 1) // length)
        for index, ids in enumerate(text.running_texts)
        for start, end, scored in spans(len(ids), length, stride)
    ]


def spans(tokens: int, length: int, stride: int) -> list[tuple[int, int, int]]:
    """Start, end and number of scored tokens of each window over a text of so many tokens.

    The last window ends with the text and scores what is left. Where the stride is the length,
    each window's first token has nothing before it and is not scored.
    """
    end = min(length, tokens)
    windows = [(0, end, end - 1)]
    while end < tokens:
        new_end = min(end + stride, tokens)
        start = max(0, new_end - length)
        windows.append((start, new_end, min(new_end - end, new_end - start - 1)))
        end = new_end
    return windows


@torch.no_grad()
def _losses(
    model: PreTrainedModel, windows: Sequence[Window], batch_size: int
) -> Iterator[tuple[Sequence[Window], list[float]]]:
    """Batches with each window's summed negative log-likelihood in nats of its scored tokens.

    In float32, summed in float64; float32 copies of logits stay a slice in size.
    """
    assert not model.training, "perplexity is measured in eval mode"
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        ids = pad_sequence([window.token_ids for window in batch], batch_first=True)  # behind
        ids = ids.to(model.device)  # (b, T)
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
        with readable_failures():
            before, whole = tokenizer.batch_decode([ids[: len(ids) - window.scored], ids])
        total += len(whole.encode()) - len(before.encode())
    return total
