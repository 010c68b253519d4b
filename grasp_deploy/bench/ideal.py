"""The best gain that a smaller model can reach, and likely reasons why it falls short.

Decoding reads every weight once a step, whatever the batch, and the cached keys and values of all
sequences. Its ideal gain is the ratio of these bytes. Prefill reads the weights once for thousands
of tokens, so its ideal gain is the ratio of the floating-point operations. The embedding is a
look-up and counts for neither. The output projection counts for both, tied or not.

The reasons are read from shapes and from the other cells; the record proves none of them. Each says
what was seen and what to try.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grasp_deploy.bench.throughput import Cell
from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.stats.noise import SMALLEST_RATIO

WIDE_TILE = 64  # channels that matrix kernels like to take at once
MANY_SHAPES = 4
TINY_WEIGHT_BYTES = 256 * 2**20
GROWTH = 1.05  # the least growth of the gain with the batch that counts as growing


def ideal_gains(dense: Footprint, pruned: Footprint, cell: Cell) -> dict[str, float]:
    """Ideal gains of `prefill`, `decode` and `throughput` (prompt to last token).

    `cell` is the first model's, whose samples split its time into prefill and decode.
    """
    prefill = prefill_operations(dense, cell) / prefill_operations(pruned, cell)
    decode = decode_step_bytes(dense, cell) / decode_step_bytes(pruned, cell)
    seconds = statistics.median(sample.seconds for sample in cell.samples)
    ttft = statistics.median(sample.ttft_seconds for sample in cell.samples)
    ideal_seconds = ttft / prefill + max(0.0, seconds - ttft) / decode
    return {"prefill": prefill, "decode": decode, "throughput": seconds / ideal_seconds}


def decode_step_bytes(footprint: Footprint, cell: Cell) -> float:
    """Bytes that one decode step moves: the weights, and the cache of the batch half-way through.

    Step i finds `prompt_tokens + i` tokens of each sequence cached, so their mean is the prompt and
    half of the new tokens. An embedding is not read, unless it is the output projection too.
    """
    cached_tokens = cell.batch * (cell.prompt_tokens + cell.new_tokens / 2)
    weight_bytes = footprint.weight_bytes
    if not footprint.tied_embeddings:
        width = weight_bytes // footprint.parameters
        weight_bytes -= footprint.vocab_size * footprint.hidden_size * width
    return weight_bytes + cached_tokens * footprint.kv_bytes_per_token


def prefill_operations(footprint: Footprint, cell: Cell) -> float:
    """Floating-point operations of a prefill, a multiplication and an addition being two.

    Linear layers and causal `QK^T` and `PV` at every position; logits of the last position only.
    """
    d, head_dim, tokens = footprint.hidden_size, footprint.head_dim, cell.prompt_tokens
    pairs = tokens * (tokens + 1) / 2  # positions that a query sees, summed over the queries
    operations = 2.0 * d * footprint.vocab_size
    for layer in footprint.layers:
        query_width = layer.num_attention_heads * head_dim
        kv_width = layer.num_key_value_heads * head_dim
        weights = d * (2 * query_width + 2 * kv_width + 3 * layer.intermediate_size)
        operations += 2 * tokens * weights + 4 * pairs * query_width
    return cell.batch * operations


def share_of_ideal(ratio: float, ideal: float) -> float | None:
    """Share of the way to the ideal: `log(ratio) / log(ideal)`, 1 if it was reached.

    Logarithms treat speeds and times alike. None if the ideal is below 2 %: no gain to hope for.
    """
    if ideal < SMALLEST_RATIO:
        return None
    return math.log(ratio) / math.log(ideal)


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
        for name, sentence in _reasons(case):
            sentences.setdefault(name, sentence)
    return [
        {**shared, "outcome": "likely reason", "reason": name, "sentence": sentence}
        for name, sentence in sentences.items()
    ]


def _reasons(case: Case) -> Iterator[tuple[str, str]]:
    dense, pruned, gains = case.dense, case.pruned, case.gain_by_batch
    layers, gain = len(pruned.layers), gains[case.batch]
    odd, dense_odd = (
        sum(layer.intermediate_size % WIDE_TILE > 0 for layer in one.layers)
        for one in (pruned, dense)
    )
    if case.on_gpu and odd and not dense_odd:  # on a CPU widths made no difference
        yield (
            "odd widths",
            f"The FFN channels of {odd} of {layers} layers are no multiple of {WIDE_TILE}, and "
            "matrix kernels are slower at such widths. To try: compress with `--ffn-multiple 128`.",
        )
    best = max((batch for batch in gains if batch >= case.batch), key=gains.__getitem__)
    if gains[best] >= max(GROWTH * gain, case.highest_gain):
        yield (
            "launch-bound small batches",
            f"The gain grows with the batch, from {gain:.2f}x at {case.batch} to "
            f"{gains[best]:.2f}x at {best}: a small batch waits for work to be started rather than "
            "done. To try: serve larger batches, on a GPU by vLLM with CUDA graphs (without "
            "`--enforce-eager`).",
        )
    if pruned.distinct_shapes > max(MANY_SHAPES, dense.distinct_shapes):
        yield (
            "many distinct shapes",
            f"The {layers} layers have {pruned.distinct_shapes} distinct shapes, and each costs "
            "the engine its own kernels, compiled pieces and metadata. To try: compress with "
            "larger `--ffn-multiple` and `--kv-multiple`.",
        )
    if dense.weight_bytes < TINY_WEIGHT_BYTES:
        yield (
            "tiny model",
            f"Even the first model has only {dense.weight_bytes / 2**20:,.1f} MiB of weights, so "
            "the engine's own work in each step weighs more than what was pruned. To try: measure "
            "a model of the size that is to be served.",
        )
