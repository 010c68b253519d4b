"""Verdicts over the KV cache."""

from __future__ import annotations

import pytest

from grasp_deploy.bench.kv.verdict import headlines, verdicts
from tests.bench.records import kv_record, model, typed

DENSE, PRUNED = model("dense"), model("pruned", 0.6)


def test_the_gain_counts_the_smaller_weights_too() -> None:
    record = typed(kv_record([DENSE, PRUNED]))
    dense_tokens, pruned_tokens = (
        (20 * 2**30 - figures["weight_bytes"]) / figures["kv_bytes_per_token"]
        for figures in (DENSE["footprint"], PRUNED["footprint"])
    )
    dense, pruned = verdicts(record)
    assert dense["gain"] is None
    assert pruned["gain"] == pytest.approx(pruned_tokens / dense_tokens, rel=0.01)
    line = headlines(record)[0]["sentence"]
    assert f" GiB of cache hold {dense_tokens // 2048:.0f} sequences of 2,048 tokens" in line


@pytest.mark.parametrize(("missing", "outcome"), [(127, "as predicted"), (128, "not as predicted")])
def test_a_block_that_is_not_full_is_as_predicted(missing: int, outcome: str) -> None:
    document = kv_record([DENSE])
    cell = document["cells"][0]
    cell["measured"]["cached_tokens"] = cell["predicted"]["cached_tokens"] - missing
    assert verdicts(typed(document))[0]["outcome"] == outcome
