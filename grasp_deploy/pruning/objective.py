"""The next-token loss of a text, and means of a loss over rows of it."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_deploy.pruning.layout import device_of
from grasp_deploy.pruning.team import ALONE, Team

OVERFLOW = (
    "the model overflows in this dtype, its weights are damaged, or an option is far from its "
    "default; try --dtype float32, and the defaults"
)


class LossError(ValueError):
    """A loss, gradient, score or hidden state that is not finite, so that nothing can be learnt."""


def language_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean next-token loss of `(B, T)` ids in nats, in float32."""
    ids = ids.to(device_of(model))
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def mean_loss(model: nn.Module, sequences: Tensor, batch_size: int, team: Team = ALONE) -> float:
    """Mean next-token loss of `(n, T)` sequences in nats per token."""
    return mean_of(partial(language_loss, model), sequences, batch_size, team)


@torch.no_grad()
def mean_of(loss: Callable[[Tensor], Tensor], rows: Tensor, batch_size: int, team: Team) -> float:
    """Mean over `(n, …)` rows of a loss that is a mean over those of a batch."""
    total = torch.zeros((), dtype=torch.float64)
    for batch in rows.split(batch_size * team.size):
        mine, share = team.deal(batch)
        total += float(loss(mine)) * share * len(batch)
    team.add_up(total)
    return float(total) / len(rows)


@torch.no_grad()
def sequence_losses(
    model: nn.Module, sequences: Tensor, batch_size: int, team: Team = ALONE
) -> Tensor:
    """`(n,)` mean next-token losses of `(n, T)` sequences in nats per token, on the CPU."""
    device = device_of(model)
    losses = torch.zeros(len(sequences), dtype=torch.float64)
    for batch in torch.arange(len(sequences)).split(batch_size * team.size):
        places, share = team.deal(batch)
        ids = sequences[places].to(device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        of_tokens = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        if share:
            losses[places] = of_tokens.mean(1).double().cpu()
    team.add_up(losses)
    return losses


def finite(loss: Tensor, stage: str, step: int) -> float:
    """The loss as a number; LossError if it is not finite."""
    value = float(loss.detach())
    if not math.isfinite(value):
        raise LossError(f"the loss of the {stage} stage is {value} at step {step + 1}: {OVERFLOW}")
    return value
