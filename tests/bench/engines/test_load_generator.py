"""What of the load generator's answer goes into a record."""

from __future__ import annotations

from typing import Any

from grasp_deploy.bench.engines.load_generator import sample_of
from grasp_deploy.bench.serve import Percentiles


def result() -> dict[str, Any]:
    """What vLLM returns, in milliseconds."""
    figures: dict[str, Any] = {
        **{"failed": 2, "output_throughput": 72.0, "request_goodput": None},
        "errors": ["", "Bad Request", "", "Bad Request", "gone"],
    }
    for number, metric in enumerate(("ttft", "tpot", "e2el"), start=1):
        for name, ms in (("mean", 10.0), ("p50", 9.0), ("p90", 20.0), ("p99", 40.0)):
            figures[f"{name}_{metric}_ms"] = ms * number
    return figures


def test_a_sample_is_in_seconds_and_says_why_requests_failed() -> None:
    sample = sample_of(result())
    assert sample.ttft_seconds == Percentiles(mean=0.01, p50=0.009, p90=0.02, p99=0.04)
    assert sample.e2e_seconds == Percentiles(mean=0.03, p50=0.027, p90=0.06, p99=0.12)
    assert sample.tpot_seconds.p99 == 0.08
    assert (sample.failed, sample.output_tokens_per_second) == (2, 72.0)
    assert sample.goodput_requests_per_second is None
    assert sample.errors == ["Bad Request", "gone"]
