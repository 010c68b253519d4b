"""Predicted sizes against the bytes of saved files."""

from dataclasses import replace
from pathlib import Path

import torch

from grasp_deploy.checkpoint.cache import CACHE
from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from tests.tiny import random_kept, slice_by_hand, tiny_model


def test_kv_bytes_are_those_of_a_filled_cache(tmp_path: Path) -> None:
    dense = tiny_model("qwen3")
    pruned = slice_by_hand(dense, random_kept(dense.config))
    pruned.save_pretrained(tmp_path)
    cache = pruned(torch.arange(7)[None])[CACHE]
    held = sum(t.numel() * t.itemsize for layer in cache.layers for t in (layer.keys, layer.values))
    shape = model_shape(read_config(tmp_path))
    assert footprint(shape).kv_bytes_per_token * 7 == held
    assert footprint(shape, kv_dtype_bytes=1).kv_bytes_per_token * 7 * 4 == held


def test_cached_tokens_fill_the_memory_beside_the_weights(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    shape = model_shape(read_config(tmp_path))
    per_token = 3 * 2 * 2 * 32 * 4  # layers, K and V, KV heads, head size, float32
    memory = shape.weight_bytes + 10 * per_token
    for spare, tokens in ((0, 10), (-1, 9), (per_token - 1, 10), (per_token, 11)):
        figures = footprint(shape, memory_bytes=memory + spare).as_dict()
        assert figures["cached_tokens_that_fit"] == tokens
        assert figures["memory_bytes"] == memory + spare
    assert footprint(shape, memory_bytes=shape.weight_bytes // 2).cached_tokens_that_fit == 0
    four_bits = replace(shape, quantization="awq", stored_bytes=shape.parameters // 2)
    assert footprint(four_bits).weight_bytes == shape.parameters // 2
