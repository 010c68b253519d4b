"""One decoder layer at a time: what attention and MLP add, and the inputs that the gates stand in.

Every supported family adds both to the hidden states in the same way:

    middle = hidden + attention(input_layernorm(hidden))
    output = middle + mlp(post_attention_layernorm(middle))

Hidden states of all batches go through a layer before the next one is looked at, so that what is
gathered of a layer may be large, and is needed for one layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.gates import decoder_layers

Call = dict[str, Any]  # what a decoder layer is called with besides the hidden states


def embedded(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """`(B, T, d)` hidden states before the first layer."""
    return [model.model.embed_tokens(batch) for batch in batches]  # type: ignore[union-attr,operator]


@torch.no_grad()
def layer_calls(model: nn.Module, batches: list[Tensor]) -> list[list[Call]]:
    """What each layer is called with for each `(B, T)` batch: rotary embeddings, masks and such.

    They depend on the shape of a batch alone, since no block is padded.
    """
    of_size = {size: _calls(model, batch) for size, batch in {len(b): b for b in batches}.items()}
    return [
        [of_size[len(batch)][layer] for batch in batches]
        for layer in range(len(decoder_layers(model)))
    ]


def attend(layer: Any, hidden: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """What attention adds to `(B, T, d)` hidden states, and the `(B, T, H·D)` inputs of o_proj."""
    with _inputs_of(layer.self_attn.o_proj) as seen:
        added, *_ = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **call)
    return added, seen[0]


def feed_forward(layer: Any, middle: Tensor) -> tuple[Tensor, Tensor]:
    """What the MLP adds to `(B, T, d)` hidden states, and the `(B, T, F)` inputs of down_proj."""
    with _inputs_of(layer.mlp.down_proj) as seen:
        added = layer.mlp(layer.post_attention_layernorm(middle))
    return added, seen[0]


@contextmanager
def _inputs_of(linear: nn.Linear) -> Iterator[list[Tensor]]:
    """The inputs that a linear layer is called with inside the `with` block, behind the gates."""
    seen: list[Tensor] = []
    handle = linear.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()


def _calls(model: nn.Module, batch: Tensor) -> list[Call]:
    """What each layer is called with when the model runs on one batch."""
    calls: list[Call] = []

    def note(_module: nn.Module, _inputs: Any, call: Call) -> None:
        calls.append(call)

    with ExitStack() as hooks:
        for layer in decoder_layers(model):
            hooks.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
        model.model(input_ids=batch, use_cache=False)  # type: ignore[operator]
    return calls
