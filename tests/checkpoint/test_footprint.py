"""Predicted sizes against the bytes of saved files, and the memory of a deployment."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch

from grasp_deploy.checkpoint.cache import CACHE
from grasp_deploy.checkpoint.footprint import Load, Room, activation_bytes, footprint
from grasp_deploy.checkpoint.format.layer_kinds import Windows
from grasp_deploy.checkpoint.format.shapes import LayerShape, model_shape, read_config
from tests.tiny import random_kept, slice_by_hand, tiny_config, tiny_model

SHAPE = model_shape(tiny_config("llama").to_dict())


def test_kv_bytes_are_those_of_a_filled_cache(tmp_path: Path) -> None:
    dense = tiny_model("qwen3")
    pruned = slice_by_hand(dense, random_kept(dense.config))
    pruned.save_pretrained(tmp_path)
    cache = pruned(torch.arange(7)[None])[CACHE]
    held = sum(t.numel() * t.itemsize for layer in cache.layers for t in (layer.keys, layer.values))
    shape = model_shape(read_config(tmp_path))
    assert footprint(shape).kv_bytes_per_token * 7 == held
    assert shape.kv_bytes_per_token(1) * 7 * 4 == held


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


def test_a_load_takes_whole_blocks_and_the_one_that_vllm_keeps() -> None:
    assert Load(3, 33, block_tokens=16).cached_tokens(Windows()) == (3 * 3 + 1) * 16
    assert Load(3, 32, block_tokens=16).cached_tokens(Windows()) == (3 * 2 + 1) * 16
    assert Load(1, 1, block_tokens=128).cached_tokens(Windows()) == 2 * 128


def test_a_layer_with_a_window_keeps_it_and_steps_under_way() -> None:
    """As vLLM admits sequences: 4,095 tokens and two steps of 2,048, in a block more."""
    all_narrow, load = Windows(4096, narrow=32), Load(16, 32768)
    assert load.blocks_each(all_narrow) == math.ceil((4095 + 2 * 2048) / 16) + 1
    on_cpu = Load(16, 32768, block_tokens=128)
    assert on_cpu.blocks_each(all_narrow) == math.ceil((4095 + 2048) / 128) + 1
    assert Load(1, 100).blocks_each(all_narrow) == math.ceil(100 / 16) + 1
    five_to_one = Windows(512, narrow=22, wide=4)  # whose 22 make six groups of four
    narrow = math.ceil((511 + 2 * 2048) / 16) + 1
    assert load.blocks_each(five_to_one) == Fraction(24 * narrow + 4 * 32768 // 16, 26)
    assert load.cached_tokens(five_to_one) < 0.3 * load.cached_tokens(Windows())


def test_the_worst_moment_is_that_of_the_widest_layer_or_of_the_logits() -> None:
    d, width, head = SHAPE.hidden_size, SHAPE.bytes_per_parameter, SHAPE.head_dim
    narrow, wide = LayerShape(2, 1, 1), LayerShape(4, 2, 1000)
    shape = replace(SHAPE, layers=(narrow, wide))
    assert activation_bytes(shape, Load(1, 8)) == 2048 * (2 * d + 3 * 1000) * width
    of_heads = replace(SHAPE, layers=(narrow, LayerShape(40, 20, 1)))
    assert activation_bytes(of_heads, Load(1, 8)) == 2048 * (2 * d + 120 * head) * width
    many = Load(4096, 8)  # a step holds a token of each at least
    assert activation_bytes(shape, many) == 4096 * (2 * d + 3000) * width
    wordy = replace(shape, vocab_size=10**6)
    assert activation_bytes(wordy, many) == 4096 * 10**6 * (width + 8)


def test_a_share_of_the_memory_is_the_decimal_that_was_written() -> None:
    room = Room(10 * 2**30, 0.9, 0)
    assert room.usable_bytes == 9 * 2**30
    assert room.memory_for(room.usable_bytes) == room.memory_bytes
    for needed in (1, 10, 11, 123_456_789):
        memory = Room(10, 0.7, 0).memory_for(needed)
        assert Room(memory - 1, 0.7, 0).usable_bytes < needed <= Room(memory, 0.7, 0).usable_bytes
