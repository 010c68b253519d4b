"""The memory of a deployment: blocks of the cache, the worst moment of a step, shares of a GPU."""

from __future__ import annotations

from dataclasses import replace

from grasp_deploy.checkpoint.deployment import Load, Room, activation_bytes
from grasp_deploy.checkpoint.format.shapes import LayerShape, model_shape
from tests.tiny import tiny_config

SHAPE = model_shape(tiny_config("llama").to_dict())


def test_a_load_takes_whole_blocks_and_the_one_that_vllm_keeps() -> None:
    assert Load(3, 33, block_tokens=16).cached_tokens == (3 * 3 + 1) * 16
    assert Load(3, 32, block_tokens=16).cached_tokens == (3 * 2 + 1) * 16
    assert Load(1, 1, block_tokens=128).cached_tokens == 2 * 128


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
