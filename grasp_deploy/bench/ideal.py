"""The best gain that a smaller model can reach: fewer bytes to move, fewer operations to do.

Decoding reads every weight once a step, whatever the batch, and the cached keys and values of all
sequences. Its ideal gain is the ratio of these bytes. Prefill reads the weights once for thousands
of tokens, so its ideal gain is the ratio of the floating-point operations. The embedding is a
look-up and counts for neither. The output projection counts for both, tied or not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.stats.noise import SMALLEST_RATIO


@dataclass(frozen=True)
class Load:
    """One batch: sequences, and the tokens of each."""

    batch: int
    prompt_tokens: int
    new_tokens: int


def ideal_gains(
    dense: Footprint, pruned: Footprint, load: Load, dense_times: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Ideal gains of `prefill`, `decode` and `throughput` (prompt to last token).

    `dense_times` are (seconds, TTFT in seconds) of the first model's repetitions, which split its
    time into prefill and decode.
    """
    prefill = prefill_operations(dense, load) / prefill_operations(pruned, load)
    decode = decode_step_bytes(dense, load) / decode_step_bytes(pruned, load)
    seconds = statistics.median(whole for whole, _ in dense_times)
    ttft = statistics.median(first for _, first in dense_times)
    ideal_seconds = ttft / prefill + (seconds - ttft) / decode
    return {"prefill": prefill, "decode": decode, "throughput": seconds / ideal_seconds}


def read_weight_bytes(footprint: Footprint) -> int:
    """Bytes of the weights that a step reads: all but the embedding, unless that is tied."""
    if footprint.tied_embeddings:
        return footprint.weight_bytes
    width = footprint.weight_bytes // footprint.parameters
    return footprint.weight_bytes - footprint.vocab_size * footprint.hidden_size * width


def decode_step_bytes(footprint: Footprint, load: Load) -> float:
    """Bytes that one decode step moves: the weights, and the cache of the batch half-way through.

    Step i finds `prompt_tokens + i` tokens of each sequence cached, so their mean is the prompt and
    half of the new tokens.
    """
    cached_tokens = load.batch * (load.prompt_tokens + load.new_tokens / 2)
    return read_weight_bytes(footprint) + cached_tokens * footprint.kv_bytes_per_token


def prefill_operations(footprint: Footprint, load: Load) -> float:
    """Floating-point operations of a prefill, a multiplication and an addition being two.

    Linear layers and causal `QK^T` and `PV` at every position; logits of the last position only.
    """
    d, head_dim, tokens = footprint.hidden_size, footprint.head_dim, load.prompt_tokens
    pairs = tokens * (tokens + 1) / 2  # positions that a query sees, summed over the queries
    operations = 2.0 * d * footprint.vocab_size
    for layer in footprint.layers:
        query_width = layer.num_attention_heads * head_dim
        kv_width = layer.num_key_value_heads * head_dim
        weights = d * (2 * query_width + 2 * kv_width + 3 * layer.intermediate_size)
        operations += 2 * tokens * weights + 4 * pairs * query_width
    return load.batch * operations


def share_of_ideal(ratio: float, ideal: float) -> float | None:
    """Share of the way to the ideal: `log(ratio) / log(ideal)`, 1 if it was reached.

    Logarithms treat speeds and times alike. None if the ideal is below 2 %: no gain to hope for.
    """
    if ideal < SMALLEST_RATIO:
        return None
    return math.log(ratio) / math.log(ideal)
