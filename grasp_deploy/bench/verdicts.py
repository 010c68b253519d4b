"""What a record says, in plain words: faster or slower or neither, how far from ideal, and why.

Pure arithmetic over records: nothing is measured here, and the same record always gives the same
verdicts. `verdicts` has one for each point that was measured; `headlines` has a few for each model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grasp_deploy.bench.kv.verdict import kv_headlines, kv_verdicts
from grasp_deploy.bench.memory.verdict import memory_headlines, memory_verdicts
from grasp_deploy.bench.serve.verdict import serve_headlines, serve_verdicts
from grasp_deploy.bench.throughput.verdict import throughput_headlines, throughput_verdicts

Verdict = dict[str, Any]

JUDGES: dict[str, Callable[[dict[str, Any]], list[Verdict]]] = {
    "throughput": throughput_verdicts,
    "memory": memory_verdicts,
    "kv": kv_verdicts,
    "serve": serve_verdicts,
}
SUMMARIES: dict[str, Callable[[dict[str, Any]], list[Verdict]]] = {
    "throughput": throughput_headlines,
    "memory": memory_headlines,
    "kv": kv_headlines,
    "serve": serve_headlines,
}


def verdicts(record: dict[str, Any]) -> list[Verdict]:
    """The verdicts of a record, one for each measured point; none for a kind that has no judge.

    Each is a JSON object with `benchmark`, `model`, `outcome` and a plain `sentence`, and the
    figures that the sentence is made of.
    """
    judge = JUDGES.get(record["benchmark"])
    return judge(record) if judge else []


def headlines(record: dict[str, Any]) -> list[Verdict]:
    """The verdicts of a record summed up over its points, as `model`, `outcome` and `sentence`.

    Where a model is slower than the first or short of the ideal, likely reasons follow, each with
    `reason` and what to try.
    """
    summarise = SUMMARIES.get(record["benchmark"])
    return summarise(record) if summarise else []
