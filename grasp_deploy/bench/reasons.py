"""Likely reasons why a smaller model is not faster, read from its shapes and the other cells.

The record proves none of them. Each reason says what was seen and what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from grasp_deploy.checkpoint.footprint import Footprint

WIDE_TILE = 64  # channels that matrix kernels like to take at once
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


def reason_lines(cases: Iterable[Case], shared: dict[str, Any]) -> list[dict[str, Any]]:
    """A headline for each different reason, with the keys that its model's headlines share."""
    sentences: dict[str, str] = {}
    for case in cases:
        for name, rule in RULES.items():
            if sentence := rule(case):
                sentences.setdefault(name, sentence)
    return [
        {**shared, "outcome": "likely reason", "reason": name, "sentence": sentence}
        for name, sentence in sentences.items()
    ]


def _odd_widths(case: Case) -> str | None:
    """GPU kernels pad widths that do not fill a tile; on a CPU widths made no difference."""
    widths = [layer.intermediate_size for layer in case.pruned.layers]
    odd = sum(width % WIDE_TILE > 0 for width in widths)
    dense_is_odd = any(layer.intermediate_size % WIDE_TILE for layer in case.dense.layers)
    if not case.on_gpu or not odd or dense_is_odd:
        return None
    return (
        f"The FFN channels of {odd} of {len(widths)} layers are no multiple of {WIDE_TILE}, and "
        "matrix kernels are slower at such widths. To try: compress with `--ffn-multiple 128`."
    )


def _launch_bound(case: Case) -> str | None:
    """At small batches a step waits for kernels to start, whatever their size."""
    gains, gain = case.gain_by_batch, case.gain_by_batch[case.batch]
    larger = [batch for batch in gains if batch > case.batch]
    best = max(larger, key=gains.__getitem__, default=case.batch)
    if gains[best] < max(GROWTH * gain, case.highest_gain):
        return None
    return (
        f"The gain grows with the batch, from {gain:.2f}x at {case.batch} to {gains[best]:.2f}x "
        f"at {best}: a small batch waits for work to be started rather than done. To try: serve "
        "larger batches, on a GPU by vLLM with CUDA graphs (without `--enforce-eager`)."
    )


def _many_shapes(case: Case) -> str | None:
    shapes = case.pruned.distinct_shapes
    if shapes <= max(MANY_SHAPES, case.dense.distinct_shapes):
        return None
    return (
        f"The {len(case.pruned.layers)} layers have {shapes} distinct shapes, and each costs the "
        "engine its own kernels, compiled pieces and metadata. To try: compress with larger "
        "`--ffn-multiple` and `--kv-multiple`."
    )


def _tiny_model(case: Case) -> str | None:
    if case.dense.weight_bytes >= TINY_WEIGHT_BYTES:
        return None
    return (
        f"Even the first model has only {case.dense.weight_bytes / 2**20:,.1f} MiB of weights, so "
        "the engine's own work in each step weighs more than what was pruned. To try: measure a "
        "model of the size that is to be served."
    )


RULES: dict[str, Callable[[Case], str | None]] = {
    "odd widths": _odd_widths,
    "launch-bound small batches": _launch_bound,
    "many distinct shapes": _many_shapes,
    "tiny model": _tiny_model,
}
