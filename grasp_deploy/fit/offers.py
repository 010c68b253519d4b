"""The memory of a deployment as it is, and of the ways to make it smaller, side by side."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from grasp_deploy.checkpoint.footprint import Load, Memory, Room, deployment_memory
from grasp_deploy.checkpoint.format.shapes import ModelShape

FP8_KV_BYTES = 1
PACK_BYTES, WEIGHTS_PER_PACK = 4, 8  # of 4-bit weights: eight of them in an int32
GROUP_COLUMNS = 128  # 4-bit weights of a row that share a scale
SHAPE_ENTRY_BYTES = 2 * 8  # two int64 beside each 4-bit matrix


@dataclass(frozen=True)
class Offer:
    """One way to deploy a model; `keep` is the share that is left of the prunable cost.

    `bits` are those of a weight, if weights are quantised; so many `sequences` would fit at a time.
    """

    name: str
    memory: Memory
    left_bytes: int
    sequences: int
    bits: int | None = None
    has_fp8_cache: bool = False
    keep: float | None = None

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        others = {"total_bytes": self.memory.total_bytes, "fits": self.fits}
        return {n: v for n, v in vars(self).items() if n != "memory"} | vars(self.memory) | others


def offers(shape: ModelShape, load: Load, room: Room, targets: str = "both") -> list[Offer]:
    """The model as it is, quantised alone, pruned alone, and both where they are needed together.

    Those that prune the `targets` take all of the room, or are left out where no pruning is enough.
    Their parts assume that channels and groups of all layers shrink alike; learnt scores divide the
    same sum otherwise.
    """

    def offer(name: str, load: Load, weight_bytes: int, bits: int | None = None) -> Offer:
        memory = deployment_memory(shape, load, room.overhead_bytes, weight_bytes)
        left = room.usable_bytes - memory.total_bytes
        return Offer(name, memory, left, _sequences(memory, left, load), bits, load == narrow)

    narrow = replace(load, kv_bytes_per_value=FP8_KV_BYTES)
    plain, eight, four = shape.weight_bytes, fp8_weight_bytes(shape), int4_weight_bytes(shape)
    rows = [
        offer("as it is", load, plain),
        offer("FP8 weights alone", load, eight, 8),
        offer("4-bit weights alone", load, four, 4),
    ]
    if load != narrow:
        rows += [
            offer("FP8 KV cache alone", narrow, plain),
            offer("FP8 weights and KV cache", narrow, eight, 8),
            offer("4-bit weights, FP8 KV cache", narrow, four, 4),
        ]
    both = (
        (load, None, lambda shape: shape.weight_bytes, ""),
        (narrow, 8, fp8_weight_bytes, ", FP8 weights and KV cache"),
        (narrow, 4, int4_weight_bytes, ", 4-bit weights, FP8 KV cache"),
    )
    for cache, bits, size, ending in both:
        if not offer("", cache, size(shape)).fits:
            pruned = _pruned(shape, cache, room, size, targets)
            rows += [
                replace(o, name=o.name + ending, bits=bits, has_fp8_cache=cache == narrow)
                for o in pruned
            ]
    if shape.experts_per_token or shape.linear:  # which `quantize` does not take
        return [row for row in rows if row.bits is None]
    return rows


def _sequences(memory: Memory, left_bytes: int, load: Load) -> int:
    """How many sequences of the load's context the cache holds, if it takes all that is left."""
    block_bytes = memory.kv_bytes * load.block_tokens // load.cached_tokens
    blocks = (memory.kv_bytes + left_bytes) // block_bytes - 1  # vLLM keeps one
    return max(0, blocks // math.ceil(load.context_tokens / load.block_tokens))


def _pruned(
    shape: ModelShape,
    load: Load,
    room: Room,
    weight_bytes: Callable[[ModelShape], int],
    targets: str,
) -> Iterator[Offer]:
    """Yield the offer that fills the room, if what no pruning removes fits it.

    KV groups stay where removing them frees no cache.
    """
    dense = deployment_memory(shape, load, room.overhead_bytes, weight_bytes(shape))
    kv_stays = shape.mixed_attention or targets == "ffn"
    groups = max(layer.num_key_value_heads for layer in shape.layers) if kv_stays else 0
    ffn_units = shape.layers[0].ffn_units if targets == "kv" else 0
    states = load.sequences * shape.state_bytes_per_sequence
    always = weight_bytes(_of_layers(shape, groups=groups, ffn_units=ffn_units))
    prunable_cache = 0 if kv_stays else dense.kv_bytes - states
    prunable_bytes = dense.weight_bytes - always + prunable_cache
    left_bytes = room.usable_bytes - (dense.total_bytes - prunable_bytes)
    if left_bytes <= 0:
        return
    keep = left_bytes / prunable_bytes
    cache = int(keep * prunable_cache)
    weights, kept_cache = always + left_bytes - cache, dense.kv_bytes - prunable_cache + cache
    memory = replace(dense, weight_bytes=weights, kv_bytes=kept_cache)
    shown = math.floor(1000 * keep) / 10  # a budget of this share fits
    yield Offer(f"pruned to {shown:.1f} %", memory, 0, load.sequences, keep=keep)


def _of_layers(shape: ModelShape, groups: int, ffn_units: int) -> ModelShape:
    """The shape with so many KV groups, and FFN channels or experts, in each layer."""
    kept = (min(groups, layer.num_key_value_heads) for layer in shape.layers)
    return replace(shape, layers=tuple(shape.layer_of(n, ffn_units) for n in kept))


def fp8_weight_bytes(shape: ModelShape) -> int:
    """Bytes with each matrix of the layers in FP8, and a scale for each of its rows.

    Embeddings, output projection, norms and biases stay as they are: llm-compressor's FP8_DYNAMIC.
    """
    return _quantised_bytes(shape, lambda columns: columns + shape.bytes_per_parameter)


def int4_weight_bytes(shape: ModelShape) -> int:
    """Bytes with each matrix in 4 bits, and a scale for 128 weights of a row: W4A16."""

    def row_bytes(columns: int) -> int:
        packed_bytes = math.ceil(columns / WEIGHTS_PER_PACK) * PACK_BYTES
        return packed_bytes + math.ceil(columns / GROUP_COLUMNS) * shape.bytes_per_parameter

    return _quantised_bytes(shape, row_bytes, SHAPE_ENTRY_BYTES)


def _quantised_bytes(
    shape: ModelShape, row_bytes: Callable[[int], int], matrix_bytes: int = 0
) -> int:
    """Bytes of all tensors, the layers' matrices by `row_bytes(columns)` and `matrix_bytes`."""
    return sum(
        dimensions[0] * row_bytes(dimensions[1]) + matrix_bytes
        if name.endswith("_proj.weight")
        else math.prod(dimensions) * shape.bytes_per_parameter
        for name, dimensions in shape.tensor_shapes().items()
    )
