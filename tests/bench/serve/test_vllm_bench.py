"""What vLLM's load generator is asked for, and what of its answer goes into a record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench.serve.record import LoadPoint, Percentiles, ServeSettings
from grasp_deploy.bench.serve.vllm_bench import bench_serve_environment, load_arguments, sample_of

SETTINGS = ServeSettings(
    requests=20, prompt_tokens=64, new_tokens=16, slo_ms={"ttft": 200.0, "tpot": 12.5}
)


def test_the_arguments_of_a_load() -> None:
    url, folder = "http://127.0.0.1:1234", Path("model")
    arguments = load_arguments(LoadPoint(8, None), SETTINGS, 3, url, folder)
    values = {
        **{"--base-url": url, "--tokenizer": "model"},
        **{"--max-concurrency": "8", "--num-prompts": "20", "--seed": "3"},
        **{"--random-input-len": "64", "--random-output-len": "16", "--random-range-ratio": "0"},
        **{"--percentile-metrics": "ttft,tpot,itl,e2el", "--metric-percentiles": "50,90,99"},
    }
    assert {flag: arguments[arguments.index(flag) + 1] for flag in values} == values
    assert "--ignore-eos" in arguments and "--request-rate" not in arguments
    assert arguments[arguments.index("--goodput") + 1 :] == ["ttft:200", "tpot:12.5"]
    plain = replace(SETTINGS, slo_ms={})
    arguments = load_arguments(LoadPoint(None, 0.5), plain, 3, url, folder)
    assert arguments[arguments.index("--request-rate") + 1] == "0.5"
    assert "--max-concurrency" not in arguments and "--goodput" not in arguments


def test_no_proxy_stands_between_the_load_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org")
    environment = bench_serve_environment()
    assert environment["NO_PROXY"] == environment["no_proxy"] == "example.org,127.0.0.1,localhost"


def result() -> dict[str, Any]:
    """What vLLM returns, in milliseconds."""
    figures: dict[str, Any] = {
        **{"completed": 18, "failed": 2, "duration": 4.0, "total_output_tokens": 288},
        **{"request_throughput": 4.5, "output_throughput": 72.0, "request_goodput": None},
        "errors": ["", "Bad Request", "", "Bad Request", "gone"],
    }
    for number, metric in enumerate(("ttft", "tpot", "itl", "e2el"), start=1):
        for name, ms in (("mean", 10.0), ("p50", 9.0), ("p90", 20.0), ("p99", 40.0)):
            figures[f"{name}_{metric}_ms"] = ms * number
    return figures


def test_a_sample_is_in_seconds_and_says_why_requests_failed() -> None:
    sample = sample_of(result())
    assert sample.ttft_seconds == Percentiles(mean=0.01, p50=0.009, p90=0.02, p99=0.04)
    assert sample.e2e_seconds == Percentiles(mean=0.04, p50=0.036, p90=0.08, p99=0.16)
    assert sample.tpot_seconds.p99 == 0.08 and sample.itl_seconds.mean == 0.03
    assert (sample.completed, sample.failed, sample.seconds) == (18, 2, 4.0)
    assert (sample.requests_per_second, sample.output_tokens_per_second) == (4.5, 72.0)
    assert sample.goodput_requests_per_second is None
    assert sample.errors == ["Bad Request", "gone"]
