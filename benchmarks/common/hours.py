"""Seconds of each stage of a compression on one card: predicted, not measured.

The operations of a forward pass are counted on the meta device, where nothing is computed. A step
of learning takes two of them: the backward pass runs through activations alone. Least squares and
the optimal brain surgeon are counted from their formulas in float64, as if every column stayed. The
card is taken to reach a stated share of its peak. Loading, export, and reading or writing text are
left out.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common.live_memory import LiveMemory
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.pruning.schedule import HELDOUT_CHECKS

PEAK, PEAK_FLOAT64 = 312e12, 19.5e12  # operations a second: an A100 of 80 GB, dense bfloat16
SHARE_OF_PEAK = 0.4
REMOVAL_SECONDS = 1e-4  # of one unit: some ten small kernels, bound by their start
ASSUMED = (
    f"predicted, not measured: {SHARE_OF_PEAK:.0%} of the peak of an A100 of 80 GB "
    f"({PEAK / 1e12:.0f} TFLOPS in 16 bits, {PEAK_FLOAT64 / 1e12:.1f} in float64)"
)
HELDOUT_SHARE = 1 / 16


def forward_seconds(config: Path, sequence_length: int) -> float:
    """Predicted seconds of one token's forward pass, within a sequence of this length."""
    model = random_model(config, "meta", "bfloat16")
    with torch.no_grad(), FlopCounterMode(display=False) as counter, LiveMemory("meta"):
        tokens = torch.zeros(1, sequence_length, dtype=torch.int64, device="meta")
        model(input_ids=tokens, use_cache=False)
    return counter.get_total_flops() / sequence_length / (SHARE_OF_PEAK * PEAK)


def compression_seconds(
    config: CompressConfig, shape: ModelShape, forward: float
) -> dict[str, float]:
    """Predicted seconds by stage, from those of one token's forward pass."""
    length, learnt = config.sequence_length, config.sequences * (1 - HELDOUT_SHARE)
    heldout = config.sequences * HELDOUT_SHARE * length
    scored = min(config.sequences_of("criterion"), learnt) * length
    refitted = min(config.sequences_of("compensation"), learnt) * length
    gated = min(config.sequences_of("gate"), learnt) * length
    units = sum(layer.intermediate_size + layer.num_key_value_heads for layer in shape.layers)
    # A criterion runs forward, backward and once more layer by layer; a refit thrice, for the
    # dense hidden states, the pruned inputs and the pruned hidden states.
    a_round = (3 + 3) * scored * forward + units * REMOVAL_SECONDS
    a_round += _float64_seconds(shape, scored, scores=True) + _float64_seconds(shape, scored)
    refit = 3 * refitted * forward + _float64_seconds(shape, refitted) + 2 * heldout * forward
    checks = (HELDOUT_CHECKS + 1) * heldout * forward
    return {
        "rounds": config.rounds * a_round,
        "gates": 2 * config.epochs * gated * forward + checks,
        "refits": refit,
        "scales": 2 * config.scale_epochs * learnt * length * forward + checks,
    }


def _float64_seconds(shape: ModelShape, tokens: float, *, scores: bool = False) -> float:
    """Seconds of the algebra of all layers, as if all were float64: of scores, or of a refit."""
    operations = 0.0
    for layer in shape.layers:
        for inputs in (layer.intermediate_size, layer.num_attention_heads * shape.head_dim):
            operations += 2 * tokens * inputs**2  # the Gram matrix
            if scores:  # an inverse, and what is left of it as units go
                operations += (1 + 2 / 3) * inputs**3
            else:  # a Cholesky factor, products with the targets, and the solution
                operations += inputs**3 / 3 + 2 * (tokens + inputs) * inputs * shape.hidden_size
    return operations / (SHARE_OF_PEAK * PEAK_FLOAT64)
