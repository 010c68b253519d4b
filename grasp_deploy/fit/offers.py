"""The memory of a deployment as it is, and of the ways to make it smaller, side by side."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from grasp_deploy.checkpoint.footprint import KV_BYTES, Load, Memory, Room, deployment_memory
from grasp_deploy.checkpoint.format.layer_kinds import Windows
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.quantised import GROUPS, eight_bit_bytes, four_bit_bytes, group_for
from grasp_deploy.config.compress_options import WIDEST


@dataclass(frozen=True)
class Offer:
    """One way to deploy a model; `keep` is the share that is left of the prunable cost.

    `bits` are those of a weight, if weights are quantised, and `group_columns` of 4 bits share a
    scale; so many `sequences` would fit at a time.
    """

    name: str
    memory: Memory
    left_bytes: int
    sequences: int
    bits: int | None = None
    group_columns: int | None = None
    has_fp8_cache: bool = False
    keep: float | None = None

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        others = {"total_bytes": self.memory.total_bytes, "fits": self.fits}
        return {n: v for n, v in vars(self).items() if n != "memory"} | vars(self.memory) | others


def offers(
    shape: ModelShape,
    load: Load,
    room: Room,
    targets: str = "both",
    multiples: tuple[int, int] = (WIDEST, 1),
) -> list[Offer]:
    """The model as it is, quantised alone, pruned alone, and both where they are needed together.

    Those that prune the `targets`, in `multiples` of FFN channels and of KV groups, take all of the
    room, or are left out where no pruning is enough. Their parts assume that channels and groups of
    all layers shrink alike; learnt scores divide the same sum otherwise. What `quantize` refuses is
    left out: experts, linear attention, and 4 bits where no group of columns divides all matrices.
    """
    narrow, bare = replace(load, kv_bytes_per_value=KV_BYTES["fp8"]), _least(shape, targets)
    whole, cut = group_for(shape), group_for(_least(shape, targets, *multiples))

    def offer(
        name: str, load: Load, weight_bytes: int, bits: int | None = None, group: int | None = None
    ) -> Offer:
        memory = deployment_memory(shape, load, room.overhead_bytes, weight_bytes)
        left = room.usable_bytes - memory.total_bytes
        sequences = _sequences(memory, left, load, shape.windows)
        return Offer(name, memory, left, sequences, bits, group, load == narrow)

    def in_four(of: ModelShape, group: int | None) -> int:
        return four_bit_bytes(of, group or GROUPS[0])  # rows without a group go in the end

    plain, eight, four = shape.weight_bytes, eight_bit_bytes(shape), in_four(shape, whole)
    rows = [
        offer("as it is", load, plain),
        offer("FP8 weights alone", load, eight, 8),
        offer("4-bit weights alone", load, four, 4, whole),
    ]
    if load != narrow:
        rows += [
            offer("FP8 KV cache alone", narrow, plain),
            offer("FP8 weights and KV cache", narrow, eight, 8),
            offer("4-bit weights, FP8 KV cache", narrow, four, 4, whole),
        ]
    uncut = (
        (offer("", load, plain), bare.weight_bytes),
        (offer(", FP8 weights and KV cache", narrow, eight, 8), eight_bit_bytes(bare)),
        (
            offer(", 4-bit weights, FP8 KV cache", narrow, in_four(shape, cut), 4, cut),
            in_four(bare, cut),
        ),
    )
    for dense, always_bytes in uncut:
        if not dense.fits:
            rows += _pruned(dense, shape, load.sequences, always_bytes, targets)
    rows = [row for row in rows if row.bits != 4 or row.group_columns]
    if shape.experts_per_token or shape.linear:
        return [row for row in rows if row.bits is None]
    return rows


def _sequences(memory: Memory, left_bytes: int, load: Load, windows: Windows) -> int:
    """How many sequences of the load's context the cache holds, if it takes all that is left."""
    block_bytes = memory.kv_bytes * load.block_tokens // load.cached_tokens(windows)
    blocks = (memory.kv_bytes + left_bytes) // block_bytes - 1  # vLLM keeps one
    return max(0, int(blocks // load.blocks_each(windows)))


def _pruned(
    dense: Offer, shape: ModelShape, sequences: int, always_bytes: int, targets: str
) -> Iterator[Offer]:
    """Yield the offer that fills the room, if what no pruning removes fits it.

    Of the weights no pruning removes `always_bytes`. KV groups stay where removing them frees no
    cache.
    """
    memory = dense.memory
    states = sequences * shape.state_bytes_per_sequence
    prunable_cache = 0 if _kv_stays(shape, targets) else memory.kv_bytes - states
    prunable_bytes = memory.weight_bytes - always_bytes + prunable_cache
    left_bytes = dense.left_bytes + prunable_bytes
    if left_bytes <= 0:
        return
    keep = left_bytes / prunable_bytes
    cache = int(keep * prunable_cache)
    weights, kept_cache = (
        always_bytes + left_bytes - cache,
        memory.kv_bytes - prunable_cache + cache,
    )
    memory = replace(memory, weight_bytes=weights, kv_bytes=kept_cache)
    name = f"pruned to {math.floor(1000 * keep) / 10:.1f} %{dense.name}"  # such a budget fits
    yield replace(dense, name=name, memory=memory, left_bytes=0, sequences=sequences, keep=keep)


def _kv_stays(shape: ModelShape, targets: str) -> bool:
    return shape.windows.are_mixed or targets == "ffn"


def _least(shape: ModelShape, targets: str, ffn_units: int = 0, groups: int = 0) -> ModelShape:
    """The shape with so many units in each layer, or all of a kind that is not pruned."""
    if _kv_stays(shape, targets):
        groups = max(layer.num_key_value_heads for layer in shape.layers)
    if targets == "kv":
        ffn_units = shape.layers[0].ffn_units
    kept = (min(groups, layer.num_key_value_heads) for layer in shape.layers)
    return replace(shape, layers=tuple(shape.layer_of(n, ffn_units) for n in kept))
