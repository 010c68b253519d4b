"""One decoder layer at a time: the sums that attention and MLP add to, and the gates' inputs.

Every supported family adds both to the hidden states in the same way:

    middle = hidden + attention(input_layernorm(hidden))
    output = middle + mlp(post_attention_layernorm(middle))

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
from grasp_deploy.pruning.ranks import gathered, sizes_anywhere

Call = dict[str, Any]  # keyword arguments of a decoder layer, such as rotary embeddings and masks
# Hidden states (B, T, d) to what attention or the MLP adds to them, and its output projection's
# (B, T, width) inputs
Half = Callable[[Tensor], tuple[Tensor, Tensor]]


def embedded(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """`(B, T, d)` hidden states before the first layer."""
    embed: nn.Module = model.model.embed_tokens  # type: ignore[union-attr,assignment]
    with gathered(embed):
        return [embed(batch) for batch in batches]


def half_layers(model: nn.Module, batches: list[Tensor]) -> Iterator[tuple[int, list[Half]]]:
    """Each segment in the order of the forward pass, with its half of a layer for each batch."""
    calls = _layer_calls(model, batches)
    for index, layer in enumerate(decoder_layers(model)):
        with gathered(layer.self_attn):
            yield 2 * index + 1, [partial(_attend, layer, call) for call in calls[index]]
        with gathered(layer.mlp):
            yield 2 * index, [partial(_feed_forward, layer) for _ in batches]


def advance(hidden: list[Tensor], halves: list[Half]) -> None:
    """Take the hidden states of all batches through a half layer, each in place of the last."""
    for place, half in enumerate(halves):
        hidden[place] = hidden[place] + half(hidden[place])[0]


@torch.no_grad()
def _layer_calls(model: nn.Module, batches: list[Tensor]) -> list[list[Call]]:
    """Keyword arguments of each layer for each `(B, T)` batch.

    They depend on the shape of a batch alone, since no sequence is padded.
    """
    layers, sizes = decoder_layers(model), sizes_anywhere(batches)
    calls_of_size: dict[int, list[Call]] = {size: [] for size in sizes}

    def keep(_layer: nn.Module, inputs: tuple[Tensor], call: Call) -> None:
        calls_of_size[len(inputs[0])].append(call)

    with installed(layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers):
        for size in sizes:
            ids = batches[0][:1].expand(size, -1)
            model.model(input_ids=ids, use_cache=False)  # type: ignore[operator]
    return [[calls_of_size[len(batch)][i] for batch in batches] for i in range(len(layers))]


def _attend(layer: Any, call: Call, hidden: Tensor) -> tuple[Tensor, Tensor]:
    inputs: list[Tensor] = []
    with on_inputs([layer.self_attn.o_proj], lambda _, x: inputs.append(x)):
        added, *_ = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **call)
    return added, inputs[0]


def _feed_forward(layer: Any, middle: Tensor) -> tuple[Tensor, Tensor]:
    inputs: list[Tensor] = []
    with on_inputs([layer.mlp.down_proj], lambda _, x: inputs.append(x)):
        added = layer.mlp(layer.post_attention_layernorm(middle))
    return added, inputs[0]
