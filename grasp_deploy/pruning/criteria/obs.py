"""What removing a unit costs once the others have made up for it: the optimal brain surgeon's loss.

Removing a unit's columns of `down_proj` or `o_proj` leaves that part of its inputs which the other
columns cannot predict. To second order, with inputs and gradients taken to be independent, it costs

    ½ tr(S C)    S   covariance of a unit's inputs, given those of all units that are left
                 C   second moments of the loss's gradient at these inputs

in nats per token, where the others' columns make up for it; C stays that of the weights as they
are, which rounds renew. Hassibi and Stork (1993) for single weights; the Fisher information in two
factors, for whole structures of a language model, as in LLM Surgeon (van der Ouderaa et al. 2024).
A KV group is a block of `G·D` columns, an FFN channel one of a single column. Units of a layer are
taken away one by one (`elimination.py`), so that of two which predict each other one is dear.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch, at_inputs, batches
from grasp_deploy.pruning.criteria.coupled import gated_linears
from grasp_deploy.pruning.criteria.elimination import losses_one_by_one
from grasp_deploy.pruning.gates import decoder_layers
from grasp_deploy.pruning.layerwise import attend, embedded, feed_forward, layer_calls
from grasp_deploy.pruning.objective import finite, language_loss
from grasp_deploy.pruning.units import UnitTable


def obs_scores(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
    removable: Tensor | None = None,
) -> Tensor:
    """`(N,)` float64 losses in nats per token, from `(n, T)` calibration blocks.

    Units that are not in the `(N,)` mask `removable` always stay: a unit that one of them predicts
    is cheap, and not the other way round. Where a layer has no other ones, scores are 0.
    `on_batch` hears of each batch, and then of each attention or MLP whose units are scored.
    Raises LossError if the loss is no number, or hidden states are not finite.
    """
    if removable is None:
        removable = torch.ones(units.size, dtype=torch.bool)
    can_go = removable.split(units.segment_sizes)
    wanted = {segment for segment, part in enumerate(can_go) if bool(part.any())}

    def say(done: int, _blocks: int = 0) -> None:
        if on_batch:
            on_batch(done, len(blocks) + len(wanted))

    gradients = _gradient_moments(model, units, blocks, batch_size, say)
    scores = [moments.new_zeros(len(moments)) for moments in gradients]
    for done, (segment, gram) in enumerate(_grams(model, blocks, batch_size, wanted), start=1):
        scores[segment] = losses_one_by_one(gram, gradients[segment], can_go[segment])
        say(len(blocks) + done)
    return torch.cat(scores)


def _gradient_moments(
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None,
) -> list[Tensor]:
    """`(units, w, w)` mean products over tokens of the gradients at the units' columns, by segment.

    The gradients are those of the summed loss of a token's sequence, in nats.
    """
    linears = gated_linears(model)
    widths = [
        linear.in_features // size
        for linear, size in zip(linears, units.segment_sizes, strict=True)
    ]
    moments = [
        torch.zeros(size, width, width, device=linear.weight.device, dtype=torch.float64)
        for linear, size, width in zip(linears, units.segment_sizes, widths, strict=True)
    ]

    def take(segment: int, gradient: Tensor) -> None:
        moments[segment] += _products(gradient, widths[segment])

    def on_progress(segment: int, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        x.register_hook(lambda gradient: take(segment, gradient))
        return x

    with at_inputs(linears, on_progress):
        for step, batch in enumerate(batches(model, blocks, batch_size, on_batch)):
            loss = language_loss(model, batch)
            finite(loss, "obs", step)
            (loss * batch[:, 1:].numel()).backward()
    return [moment / blocks.numel() for moment in moments]


def _products(gradients: Tensor, width: int) -> Tensor:
    """`(units, w, w)` sums over tokens of the products of each unit's columns."""
    rows = gradients.flatten(end_dim=-2).float()
    if width == 1:
        return rows.square().sum(0)[:, None, None]
    by_unit = rows.unflatten(1, (-1, width)).transpose(0, 1)
    return by_unit.transpose(1, 2) @ by_unit


@torch.no_grad()
def _grams(
    model: nn.Module, blocks: Tensor, batch_size: int, wanted: Container[int]
) -> Iterator[tuple[int, Tensor]]:
    """Float64 mean products over tokens of the columns of o_proj and down_proj, by wanted segment.

    One is made at a time: a model's together would be larger than the model.
    """
    read = list(batches(model, blocks, batch_size, None))
    calls = layer_calls(model, read)
    hidden = embedded(model, read)
    for index, layer in enumerate(decoder_layers(model)):
        gram = _Gram(layer.self_attn.o_proj) if 2 * index + 1 in wanted else None
        for place, call in enumerate(calls[index]):
            added, inputs = attend(layer, hidden[place], call)
            hidden[place] = hidden[place] + added
            if gram:
                gram.add(inputs)
        if gram:
            yield 2 * index + 1, gram.mean()
        gram = _Gram(layer.mlp.down_proj) if 2 * index in wanted else None
        for place, middle in enumerate(hidden):
            added, inputs = feed_forward(layer, middle)
            hidden[place] = middle + added
            if gram:
                gram.add(inputs)
        if gram:
            yield 2 * index, gram.mean()


class _Gram:
    """Products of a linear layer's inputs, in float64 as in the compensation: they differ a lot."""

    def __init__(self, linear: nn.Linear) -> None:
        width, device = linear.in_features, linear.weight.device
        self._sums = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._tokens = 0

    def add(self, inputs: Tensor) -> None:
        rows = inputs.flatten(end_dim=-2).double()
        self._sums.addmm_(rows.T, rows)
        self._tokens += len(rows)

    def mean(self) -> Tensor:
        """Over all tokens so far; the sums are spent."""
        return self._sums.div_(self._tokens)
