"""Decoding token by token: a preallocated KV cache, and attention over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, LlamaModel, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grasp_deploy.pruning.layout import device_of, half_of, output_projections

# The forward pass's name for the cache, as an argument and in its output.
CACHE = "cache" if "cache" in signature(LlamaModel.forward).parameters else "past_key_values"
STEP = "grasp_deploy_step"  # the name of an attention implementation


class PreallocatedLayer(DynamicLayer):
    """A layer's keys and values preallocated at full length; attention sees the filled part."""

    def __init__(self, attention: Any, batch: int, tokens: int, like: PreTrainedModel) -> None:
        super().__init__()
        width = attention.head_dim
        shape = (2, batch, attention.k_proj.out_features // width, tokens, width)
        dtype, device = like.dtype, device_of(like)  # the projections may be quantised
        self.all_keys, self.all_values = torch.zeros(shape, dtype=dtype, device=device)
        self.dtype, self.device = dtype, device
        self.keys, self.values = self.all_keys[:, :, :0], self.all_values[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new `(B, K, T, D)` keys and values; return views of all that are cached."""
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        self.all_keys[:, :, start:end] = key_states
        self.all_values[:, :, start:end] = value_states
        self.keys, self.values = self.all_keys[:, :, :end], self.all_values[:, :, :end]
        return self.keys, self.values


def empty_cache(model: PreTrainedModel, batch: int, tokens: int) -> Cache:
    """A cache preallocated for `tokens` of each sequence; transformers' own for sliding windows."""
    dynamic = DynamicCache(config=model.config)
    if any(dynamic.is_sliding):
        return dynamic
    layers = list(dynamic.layers)
    for segment in output_projections(model):
        if segment % 2:  # a KV segment; layers with linear attention have none, but a state
            attention = half_of(model, segment)
            layers[segment // 2] = PreallocatedLayer(attention, batch, tokens, model)
    return Cache(layers)


@contextmanager
def one_token_steps(model: PreTrainedModel) -> Iterator[None]:
    """Within the `with` block attend from one token per sequence, without copying KV heads."""
    before = model.config._attn_implementation
    model.set_attn_implementation(STEP)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    scaling: float,
    **_options: Any,
) -> tuple[Tensor, None]:
    """`(B, 1, H, D)` outputs for `(B, H, 1, D)` queries, with one product for each KV head.

    No mask is needed: the `(B, K, T, D)` keys and values are all that the token may see.
    """
    batch, heads, _, width = query.shape
    rows = query.reshape(batch, key.shape[1], -1, width)
    chances = torch.softmax((rows @ key.mT).float() * scaling, dim=-1)
    outputs = chances.to(value.dtype) @ value
    return outputs.reshape(batch, 1, heads, width), None


ALL_ATTENTION_FUNCTIONS.register(STEP, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(STEP, sdpa_mask)
