"""Likely reasons why a smaller model is not faster, read from its shapes and the other cells.

The record proves none of them. Each reason says what was seen and what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

from grasp_deploy.checkpoint.footprint import Footprint

WIDE_TILE, NARROW_TILE = 64, 8  # channels that matrix kernels like to take at once
MANY_SHAPES = 4
TINY_WEIGHT_BYTES = 256 * 2**20
GROWTH = 1.05  # the least growth of the gain with the batch that counts as growing


@dataclass(frozen=True)
class Case:
    """A model that is slower than the first, or short of the ideal, at one point."""

    dense: Footprint
    pruned: Footprint
    batch: int
    gain_by_batch: dict[int, float]  # of this quantity, over all batch sizes of the record
    highest_gain: float  # the upper end of this point's interval
    on_gpu: bool
    engine: str = "vllm"
    eager: bool = False
    tensor_parallel_size: int = 1


class Reason(NamedTuple):
    """A likely cause: its name, and a sentence of what was seen and what to try."""

    name: str
    sentence: str


def likely_reasons(case: Case) -> list[Reason]:
    """The causes that shapes and cells speak for; possibly none."""
    return [reason for rule in RULES if (reason := rule(case)) is not None]


def reason_lines(cases: Iterable[Sequence[Reason]], shared: dict[str, Any]) -> list[dict[str, Any]]:
    """A headline for each different reason, with the keys that its model's headlines share."""
    sentences: dict[str, str] = {}
    for reason in chain.from_iterable(cases):
        sentences.setdefault(reason.name, reason.sentence)
    return [
        {**shared, "outcome": "likely reason", "reason": name, "sentence": sentence}
        for name, sentence in sentences.items()
    ]


def on_gpu(machine: dict[str, Any], device: str = "auto") -> bool:
    """True for a record measured on a GPU: the machine has one, and the device is not the CPU."""
    return "gpu" in machine and device != "cpu"


def tensor_parallel_size(server_flags: Sequence[str]) -> int:
    """Workers that share each layer, by the flags of vLLM's server."""
    for flag, value in pairwise([*server_flags, ""]):
        name, _, inline = flag.partition("=")
        size = inline or value
        if name.replace("_", "-") in ("--tensor-parallel-size", "-tp") and size.isdigit():
            return int(size)
    return 1


def _tensor_parallel(case: Case) -> Reason | None:
    """vLLM copies a KV head to several workers where there are fewer heads than workers."""
    size, layers = case.tensor_parallel_size, case.pruned.layers
    few = sum(layer.num_key_value_heads < size for layer in layers)
    if size == 1 or not few:
        return None
    return Reason(
        "tensor-parallel replication",
        f"{_layers(few, len(layers))} fewer KV heads than the {size} tensor-parallel workers, "
        "which each keep a copy and read it. To try: compress with "
        f"`--tensor-parallel {size}`, or serve with fewer workers.",
    )


def _odd_widths(case: Case) -> Reason | None:
    """GPU kernels pad widths that do not fill a tile; on a CPU widths made no difference."""
    dense, layers = case.dense.layers, case.pruned.layers
    if not case.on_gpu or len(dense) != len(layers):
        return None
    odd = [
        after.intermediate_size
        for before, after in zip(dense, layers, strict=True)
        if after.intermediate_size % WIDE_TILE and not before.intermediate_size % WIDE_TILE
    ]
    if not odd:
        return None
    very_odd = sum(width % NARROW_TILE > 0 for width in odd)
    worse = f", {very_odd} of them not even of {NARROW_TILE}" if very_odd else ""
    return Reason(
        "odd widths",
        f"{_layers(len(odd), len(layers))} FFN channels that are no multiple of {WIDE_TILE}"
        f"{worse}, and matrix kernels are slower at such widths. To try: compress with "
        "`--ffn-multiple 128`.",
    )


def _many_shapes(case: Case) -> Reason | None:
    shapes = case.pruned.distinct_shapes
    if shapes <= max(MANY_SHAPES, case.dense.distinct_shapes):
        return None
    return Reason(
        "many distinct shapes",
        f"The {len(case.pruned.layers)} layers have {shapes} distinct shapes, and each costs the "
        "engine its own kernels, compiled pieces and metadata. To try: compress with larger "
        "`--ffn-multiple` and `--kv-multiple`.",
    )


def _launch_bound(case: Case) -> Reason | None:
    """At small batches a step waits for kernels to start, whatever their size."""
    gains, gain = case.gain_by_batch, case.gain_by_batch[case.batch]
    larger = [batch for batch in gains if batch > case.batch]
    best = max(larger, key=gains.__getitem__, default=case.batch)
    if gains[best] < max(GROWTH * gain, case.highest_gain):
        return None
    return Reason(
        "launch-bound small batches",
        f"The gain grows with the batch, from {gain:.2f}x at {case.batch} to {gains[best]:.2f}x "
        f"at {best}: a small batch waits for work to be started rather than done. To try: serve "
        f"larger batches{_graphs(case)}.",
    )


def _tiny_model(case: Case) -> Reason | None:
    if case.dense.weight_bytes >= TINY_WEIGHT_BYTES:
        return None
    return Reason(
        "tiny model",
        f"Even the first model has only {case.dense.weight_bytes / 2**20:,.1f} MiB of weights, so "
        "the engine's own work in each step weighs more than what was pruned. To try: measure a "
        "model of the size that is to be served.",
    )


RULES: Sequence[Callable[[Case], Reason | None]] = (
    _tensor_parallel,
    _odd_widths,
    _launch_bound,
    _many_shapes,
    _tiny_model,
)


def _graphs(case: Case) -> str:
    """CUDA graphs, which help small batches on a GPU, if they were not used."""
    if not case.on_gpu:
        return ""
    if case.engine == "transformers":
        return ", or serve with vLLM, which starts a whole step at once (CUDA graphs)"
    if not case.eager:
        return ""
    return ", and let vLLM use CUDA graphs (leave out `--enforce-eager`)"


def _layers(count: int, total: int) -> str:
    return f"{count} of {total} layers {'has' if count == 1 else 'have'}"
