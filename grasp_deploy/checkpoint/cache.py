"""A KV cache whose room is taken at the start, so that no step copies what is cached."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """A layer's keys and values in tensors with room for all; attention sees what is there."""

    def __init__(self, attention: Any, batch: int, tokens: int) -> None:
        super().__init__()
        weight, width = attention.k_proj.weight, attention.head_dim
        heads = attention.k_proj.out_features // width
        self.all_keys, self.all_values = weight.new_zeros(2, batch, heads, tokens, width)
        self.lazy_initialization(self.all_keys, self.all_values)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = self.all_keys[:, :, :0], self.all_values[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new `(B, K, T, D)` behind those cached; gives all of them, without a copy."""
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        self.all_keys[:, :, start:end] = key_states
        self.all_values[:, :, start:end] = value_states
        self.keys, self.values = self.all_keys[:, :, :end], self.all_values[:, :, :end]
        return self.keys, self.values


def empty_cache(model: PreTrainedModel, batch: int, tokens: int) -> Cache:
    """A cache with room for `tokens` of each sequence; transformers' own for sliding windows."""
    dynamic = DynamicCache(config=model.config)
    if any(dynamic.is_sliding):
        return dynamic
    decoder: Any = model.model
    return Cache([PreallocatedLayer(layer.self_attn, batch, tokens) for layer in decoder.layers])
