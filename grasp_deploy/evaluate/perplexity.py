"""Losses of causal language models on the same sequences, and how far each lies from the first.

The divergence is KL(first || other), exact over the vocabulary: zero where both models say the
same, whatever the text's own next token is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from grasp_deploy.checkpoint.read.loading import check_tokens
from grasp_deploy.data import Blocks
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.stats.clustered import standard_error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_LOSS = math.log(torch.finfo(torch.float64).max)
POSITIONS_IN_FLOAT32 = 256  # 128 MiB of logits at a vocabulary of 128k


@dataclass(frozen=True)
class Measured:
    """A model's figures on a text: means over the predicted tokens of each sequence."""

    losses: list[float]  # nats per token
    divergences: list[float]  # from the first model, nats per token
    agreements: list[float]  # share of tokens that the first model finds most likely, too
    tokens: int  # predicted in all
    dtype: str

    @property
    def loss_nats_per_token(self) -> float:
        return statistics.fmean(self.losses)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss_nats_per_token)

    def as_dict(self) -> dict[str, float | None]:
        """Perplexity, loss and its standard error (null for one sequence), as records have them."""
        return {
            "perplexity": self.perplexity,
            "loss_nats_per_token": self.loss_nats_per_token,
            "standard_error": standard_error(self.losses),
        }


def perplexity(
    model: PreTrainedModel,
    blocks: Blocks,
    batch_size: int = 1,
    on_progress: OnProgress = ignore_progress,
    *,
    stage: str = "perplexity",
) -> Measured:
    """Measure a model alone, as `measure` does."""
    return measure([model], blocks, batch_size, on_progress, stage=stage)[0]


@torch.no_grad()
def measure(
    models: Sequence[PreTrainedModel],
    blocks: Blocks,
    batch_size: int = 1,
    on_progress: OnProgress = ignore_progress,
    *,
    stage: str = "perplexity",
) -> list[Measured]:
    """Figures of `models` in eval mode, each batch going through all of them once.

    Every token of a sequence but its first is predicted, from all before it. `on_progress` gets a
    row with the last model's mean loss so far after each batch. Raises InputError for text that
    does not fit a model, and for a figure that is not finite or has no finite exponential.
    """
    token_ids, count = blocks.token_ids, len(blocks.token_ids)
    for model in models:
        assert not model.training, "losses are measured in eval mode"
        check_tokens(token_ids, model.config.to_dict())
    means = torch.zeros(count, len(models), 3, dtype=torch.float64)
    for first in range(0, count, batch_size):
        ids = token_ids[first : first + batch_size].to(models[0].device)  # (b, T)
        outputs = [model(input_ids=ids, use_cache=False).logits for model in models]  # (b, T, V)
        for row, targets in enumerate(ids[:, 1:]):
            slices = (logits[row, :-1].split(POSITIONS_IN_FLOAT32) for logits in outputs)
            parts = zip(targets.split(POSITIONS_IN_FLOAT32), *slices, strict=True)
            # Not every device has float64.
            summed = [token_figures(*part).cpu().double().sum(0) for part in parts]
            means[first + row] = torch.stack(summed).sum(0) / len(targets)
        done = first + len(ids)
        so_far = means[:done].mean(0)  # (models, 3)
        _check_finite(models, so_far, f"after {done} of {count} sequences ({stage})")
        on_progress({"stage": stage, "step": done, "steps": count, "loss": float(so_far[-1, 0])})
    tokens, found = count * (token_ids.shape[1] - 1), []
    for model, figures in zip(models, means.unbind(1), strict=True):  # (sequences, 3)
        losses, divergences, agreements = figures.T.tolist()
        dtype = str(model.dtype).removeprefix("torch.")
        found.append(Measured(losses, divergences, agreements, tokens, dtype))
    return found


def _check_finite(models: Sequence[PreTrainedModel], means: Tensor, when: str) -> None:
    """Raise InputError for the first mean `(models, 3)`, losses first, that is out of range."""
    bad = ~(means.abs() < LARGEST_LOSS)  # NaN too
    if bad.any():
        figure, index = bad.T.nonzero()[0].tolist()
        what = "loss" if figure == 0 else "divergence from the first model"
        raise InputError(
            f"the {what} of {models[index].name_or_path or 'the model'} is "
            f"{means[index, figure]:.3g} {when}: its weights are broken or overflow their dtype; "
            "try --dtype float32, and check the model with `grasp-deploy verify`"
        )


def token_figures(targets: Tensor, *logits: Tensor) -> Tensor:
    """Figures `(P, models, 3)` from the tokens `(P,)` that follow and `(P, V)` of each model.

    In float32: the loss in nats, KL(first || this) in nats, and 1 where the most likely token is
    the first model's.
    """
    first, figures = logits[0].float().log_softmax(-1), []
    best, nothing = logits[0].argmax(-1), torch.zeros(len(targets), device=targets.device)
    for each in logits:
        scores = first if each is logits[0] else each.float().log_softmax(-1)
        loss = -scores.gather(-1, targets[:, None])[:, 0]
        # A model alone is not compared with itself, which would double the time of its loss.
        divergence = (
            nothing
            if each is logits[0]
            else kl_div(scores, first, reduction="none", log_target=True).sum(-1)
        )
        figures.append(torch.stack([loss, divergence, (each.argmax(-1) == best).float()], dim=-1))
    return torch.stack(figures, dim=1)
