"""One decoder layer at a time: the sums that attention and MLP add to, and the gates' inputs.

Every supported family adds both to the hidden states in the same way:

    middle = hidden + m · attention(input_layernorm(hidden))
    output = middle + m · mlp(post_attention_layernorm(middle))

`m` is Granite's residual multiplier, and 1 elsewhere.

Hidden states of all batches go through a layer before the next layer starts. What is gathered of
a layer may therefore be large: it is needed for one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.layout import decoder_layers, installed, on_inputs
from grasp_deploy.pruning.team import Team

Call = dict[str, Any]  # keyword arguments of a decoder layer, such as rotary embeddings and masks
# Hidden states (B, T, d) to what attention or the MLP adds to them, and its output projection's
# (B, T, width) inputs
Half = Callable[[Tensor], tuple[Tensor, Tensor]]


def embedded(model: nn.Module, batches: list[Tensor], team: Team) -> list[Tensor]:
    """`(B, T, d)` hidden states before the first layer."""
    embed: nn.Module = model.model.embed_tokens  # type: ignore[union-attr,assignment]
    with team.gathered(embed):
        factor = getattr(model.config, "embedding_multiplier", 1.0)
        return [embed(batch) * factor for batch in batches]


def half_layers(
    model: nn.Module, batches: list[Tensor], team: Team
) -> Iterator[tuple[int, list[Half]]]:
    """Each segment in the order of the forward pass, with its half of a layer for each batch."""
    calls, factor = _layer_calls(model, batches[0][:1]), residual_multiplier(model)
    for index, (layer, call) in enumerate(zip(decoder_layers(model), calls, strict=True)):
        with team.gathered(layer.self_attn):
            yield 2 * index + 1, [partial(_attend, layer, call, factor) for _ in batches]
        with team.gathered(layer.mlp):
            yield 2 * index, [partial(_feed_forward, layer, factor) for _ in batches]


def residual_multiplier(model: nn.Module) -> float:
    """What multiplies the outputs of attention and MLP before they are added."""
    return getattr(model.config, "residual_multiplier", 1.0)


def advance(hidden: list[Tensor], halves: list[Half]) -> None:
    """Take the hidden states of all batches through a half layer, each in place of the last."""
    for place, half in enumerate(halves):
        hidden[place] = hidden[place] + half(hidden[place])[0]


@torch.no_grad()
def _layer_calls(model: nn.Module, ids: Tensor) -> list[Call]:
    """Keyword arguments of each layer for `(1, T)` ids.

    They depend on `T` alone, since no sequence is padded, and serve a batch of any size.
    """
    layers, calls = decoder_layers(model), []

    def keep(_layer: nn.Module, _inputs: tuple[Tensor], call: Call) -> None:
        calls.append(call)

    with installed(layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers):
        model.model(input_ids=ids, use_cache=False)  # type: ignore[operator]
    return calls


def _attend(layer: Any, call: Call, factor: float, hidden: Tensor) -> tuple[Tensor, Tensor]:
    inputs: list[Tensor] = []
    with on_inputs([layer.self_attn.o_proj], lambda _, x: inputs.append(x)):
        added, *_ = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **call)
    return added * factor, inputs[0]


def _feed_forward(layer: Any, factor: float, middle: Tensor) -> tuple[Tensor, Tensor]:
    inputs: list[Tensor] = []
    with on_inputs([layer.mlp.down_proj], lambda _, x: inputs.append(x)):
        added = layer.mlp(layer.post_attention_layernorm(middle))
    return added * factor, inputs[0]
