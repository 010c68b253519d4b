"""The ideal gain, against bytes and operations counted by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import convert

from grasp_deploy.bench.ideal import (
    Load,
    decode_step_bytes,
    ideal_gains,
    prefill_operations,
    share_of_ideal,
)
from grasp_deploy.checkpoint.footprint import Footprint
from tests.bench.records import model


def footprint_of(keep: float = 1.0, **sizes: Any) -> Footprint:
    return convert(model("any", keep, **sizes)["footprint"], Footprint)


def test_decoding_moves_the_weights_and_the_cache() -> None:
    load = Load(batch=4, prompt_tokens=100, new_tokens=20)
    layer = 4096 * (4 * 4096 + 3 * 11008) + 2 * 4096
    weight_bytes = 2 * (32 * layer + 4096 + 32000 * 4096)  # lm_head, but not the embedding
    cache_bytes = 4 * 110 * 32 * 2 * 4096 * 2
    assert decode_step_bytes(footprint_of(), load) == weight_bytes + cache_bytes


def test_a_tied_table_is_read_as_the_output_projection() -> None:
    load, tied = Load(1, 1, 2), footprint_of(tie_word_embeddings=True)
    assert decode_step_bytes(tied, load) == decode_step_bytes(footprint_of(), load)


def test_a_prefill_counts_linear_layers_attention_and_the_last_logits() -> None:
    linear = 2 * 3 * 32 * 4096 * (4 * 4096 + 3 * 11008)
    attention = 4 * (1 + 2 + 3) * 32 * 4096
    logits = 2 * 4096 * 32000
    load = Load(batch=5, prompt_tokens=3, new_tokens=1)
    assert prefill_operations(footprint_of(), load) == 5 * (linear + attention + logits)


def test_the_ideal_of_the_whole_splits_the_dense_time() -> None:
    ideal = ideal_gains(footprint_of(), footprint_of(0.6), Load(8, 2048, 256), [(10.0, 4.0)])
    assert 1.3 < ideal["decode"] < ideal["prefill"] < 1.9
    assert ideal["throughput"] == pytest.approx(10 / (4 / ideal["prefill"] + 6 / ideal["decode"]))


def test_share_of_ideal() -> None:
    assert share_of_ideal(1.5, 1.5) == 1
    assert share_of_ideal(math.sqrt(1.5), 1.5) == pytest.approx(0.5)
    assert share_of_ideal(1 / 1.5, 1.5) == pytest.approx(-1)
    assert share_of_ideal(1.3, 1.01) is None  # no gain to hope for
