"""A KV cache whose room is taken at the start, so that no step copies what is cached."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, LlamaModel, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from grasp_deploy.pruning.layout import device_of

# The name of the cache in a forward pass, going in and coming out.
CACHE = "cache" if "cache" in signature(LlamaModel.forward).parameters else "past_key_values"


class PreallocatedLayer(DynamicLayer):
    """A layer's keys and values in tensors with room for all; attention sees what is there."""

    def __init__(self, attention: Any, batch: int, tokens: int, device: torch.device) -> None:
        super().__init__()
        width = attention.head_dim
        shape = (2, batch, attention.k_proj.out_features // width, tokens, width)
        dtype = attention.k_proj.weight.dtype
        self.all_keys, self.all_values = torch.zeros(shape, dtype=dtype, device=device)
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
    device, attentions = device_of(model), [layer.self_attn for layer in decoder.layers]
    return Cache([PreallocatedLayer(each, batch, tokens, device) for each in attentions])
