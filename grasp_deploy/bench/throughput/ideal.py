"""The best gain that a smaller model can reach: fewer bytes to move, fewer operations to do.

Decoding reads every weight once a step, whatever the batch, and the cached keys and values of all
sequences. Its ideal gain is the ratio of these bytes. Prefill reads the weights once for thousands
of tokens, so its ideal gain is the ratio of the floating-point operations. The embedding is a
look-up and counts for neither. The output projection counts for both, tied or not.
"""

from __future__ import annotations

import math
import statistics

from grasp_deploy.bench.throughput.record import Cell
from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.stats.noise import SMALLEST_RATIO


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
