"""The ideal gain, against bytes and operations counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from grasp_deploy.bench.throughput import Cell, Sample
from grasp_deploy.bench.throughput_show import decode_step_bytes, ideal_gain, prefill_operations
from grasp_deploy.checkpoint.footprint import Footprint
from tests.bench.records import model

TIMES = [Sample(seconds=10.0, ttft_seconds=4.0, tpot_seconds=1.0)]


def footprint_of(keep: float = 1.0, **sizes: Any) -> Footprint:
    return convert(model("any", keep, **sizes)["footprint"], Footprint)


def cell(batch: int, prompt: int, new: int) -> Cell:
    point = {"batch": batch, "prompt_tokens": prompt, "new_tokens": new}
    return convert({"model": "any", **point, "samples": TIMES}, Cell)


def test_decoding_moves_the_weights_and_the_cache() -> None:
    layer = 4096 * (4 * 4096 + 3 * 11008) + 2 * 4096
    weight_bytes = 2 * (32 * layer + 4096 + 32000 * 4096)  # lm_head, but not the embedding
    cache_bytes = 4 * 110 * 32 * 2 * 4096 * 2
    for tied in (False, True):  # a tied table is read as the output projection
        dense = footprint_of(tie_word_embeddings=tied)
        assert decode_step_bytes(dense, cell(4, 100, 20)) == weight_bytes + cache_bytes


def test_a_prefill_counts_linear_layers_attention_and_the_last_logits() -> None:
    linear = 2 * 3 * 32 * 4096 * (4 * 4096 + 3 * 11008)
    attention = 4 * (1 + 2 + 3) * 32 * 4096
    logits = 2 * 4096 * 32000
    assert prefill_operations(footprint_of(), cell(5, 3, 1)) == 5 * (linear + attention + logits)


def test_the_ideal_of_the_whole_splits_the_dense_time() -> None:
    dense, pruned, at = footprint_of(), footprint_of(0.6), cell(8, 2048, 256)
    prefill = prefill_operations(dense, at) / prefill_operations(pruned, at)
    decode = decode_step_bytes(dense, at) / decode_step_bytes(pruned, at)
    assert 1.3 < decode < prefill < 1.9
    assert ideal_gain(dense, pruned, at) == pytest.approx(10 / (4 / prefill + 6 / decode))
