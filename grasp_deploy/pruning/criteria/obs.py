"""The optimal brain surgeon's loss: the cost of removing a unit once the others make up for it.

Removing a unit's columns of `down_proj` or `o_proj` loses that part of its inputs which the other
columns cannot predict. To second order, with inputs and gradients assumed independent, it costs

    ½ tr(S C)    S   covariance of a unit's inputs, given those of all units that are left
                 C   second moments of the loss's gradient at these inputs

in nats per token. C stays that of the present weights, which rounds renew. Hassibi and Stork (1993)
for single weights; the Fisher information in two factors, for whole structures of a language model,
as in LLM Surgeon (van der Ouderaa et al. 2024). A KV group is a block of `G·D` columns, an FFN
channel one of a single column. Units of a layer are removed one by one (`elimination.py`), so that
of two units which predict each other the second is expensive.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.elimination import losses_one_by_one
from grasp_deploy.pruning.hooks import on_inputs
from grasp_deploy.pruning.layerwise import attend, embedded, feed_forward, layer_calls
from grasp_deploy.pruning.layout import decoder_layers, device_of, output_projections
from grasp_deploy.pruning.least_squares import Gram
from grasp_deploy.pruning.units import UnitTable


def obs_scores(
    model: nn.Module, units: UnitTable, text: CalibrationText, removable: Tensor | None = None
) -> Tensor:
    """`(N,)` float64 losses in nats per token.

    Units outside the `(N,)` mask `removable` always stay: a unit that one of them predicts is
    cheap, and not the other way round. In a layer without removable units scores are 0. The
    text's `on_batch` is called behind each batch, and then behind each segment that is scored.

    Raises LossError if the loss or hidden states are not finite.
    """
    if removable is None:
        removable = torch.ones(units.size, dtype=torch.bool)
    removable_of = removable.split(units.segment_sizes)
    scored = {segment for segment, part in enumerate(removable_of) if bool(part.any())}
    read = len(text.sequences)
    total = read + len(scored)
    batches = replace(text, on_batch=lambda done, _sequences: text.on_batch(done, total))

    gradients = _gradient_moments(model, units, batches)
    scores = [moments.new_zeros(len(moments)) for moments in gradients]
    for done, (segment, gram) in enumerate(_grams(model, text, scored), start=1):
        scores[segment] = losses_one_by_one(gram, gradients[segment], removable_of[segment])
        text.on_batch(read + done, total)
    return torch.cat(scores)


def _gradient_moments(model: nn.Module, units: UnitTable, text: CalibrationText) -> list[Tensor]:
    """`(units, w, w)` mean products over tokens of the gradients at the units' columns, by segment.

    The gradients are those of the summed loss of a token's sequence, in nats.
    """
    linears = output_projections(model)
    moments = []
    for linear, size in zip(linears, units.segment_sizes, strict=True):
        width = linear.in_features // size
        shape = (size, width, width)
        moments.append(torch.zeros(shape, device=linear.weight.device, dtype=torch.float64))

    def add(segment: int, gradient: Tensor) -> None:
        moments[segment] += _products(gradient, moments[segment].shape[-1])

    def track(segment: int, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        x.register_hook(lambda gradient: add(segment, gradient))
        return x

    with on_inputs(linears, track):
        for batch, loss in text.losses(model, "obs"):
            (loss * batch[:, 1:].numel()).backward()
    return [moment / text.sequences.numel() for moment in moments]


def _products(gradients: Tensor, width: int) -> Tensor:
    """`(units, w, w)` sums over tokens of the products of each unit's columns."""
    rows = gradients.flatten(end_dim=-2).float()
    if width == 1:
        return rows.square().sum(0)[:, None, None]
    by_unit = rows.unflatten(1, (-1, width)).transpose(0, 1)
    return by_unit.transpose(1, 2) @ by_unit


@torch.no_grad()
def _grams(
    model: nn.Module, text: CalibrationText, scored: Container[int]
) -> Iterator[tuple[int, Tensor]]:
    """Float64 mean products over tokens of the inputs of o_proj and down_proj, by scored segment.

    One is made at a time: a model's together would be larger than the model.
    """
    device = device_of(model)
    batches = [batch.to(device) for batch in text.sequences.split(text.batch_size)]
    calls = layer_calls(model, batches)
    hidden = embedded(model, batches)
    for index, layer in enumerate(decoder_layers(model)):
        for segment, linear, run in (
            (2 * index + 1, layer.self_attn.o_proj, attend),
            (2 * index, layer.mlp.down_proj, feed_forward),
        ):
            gram = Gram(linear.in_features, device) if segment in scored else None
            for place, (states, call) in enumerate(zip(hidden, calls[index], strict=True)):
                added, inputs = run(layer, states, **call)
                hidden[place] = states + added
                if gram:
                    gram.add(inputs)
            if gram:
                yield segment, gram.mean()
