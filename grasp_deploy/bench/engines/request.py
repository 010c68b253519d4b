"""How an engine's child is started: its module, its environment, and its first request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.engine.vllm_process import vllm_child_environment

if TYPE_CHECKING:
    from grasp_deploy.bench.throughput import ThroughputSettings
    from grasp_deploy.evaluate.models import BenchModel

MODULES = {
    "vllm": "grasp_deploy.bench.engines.vllm_child",
    "transformers": "grasp_deploy.bench.engines.transformers_child",
}


def environment_of(engine: str) -> dict[str, str]:
    """The environment of an engine's child, whose threads shall not spin while it is idle.

    GNU's OpenMP stops after a few milliseconds by default. Intel's takes 200, at the next child's
    expense; vLLM gives its own workers 5.
    """
    environment = vllm_child_environment() if engine == "vllm" else os.environ
    return {"KMP_BLOCKTIME": "5", **environment}


def load_request(model: BenchModel, folder: Path, settings: ThroughputSettings) -> dict[str, Any]:
    """The request that makes a child load a model, whose config.json is in this folder.

    vLLM gets room for whole batches, and one step may prefill the whole of the largest batch. With
    its own limit the first requests would decode while the last ones wait for their prefill: TTFT
    and TPOT would mix both phases.
    """
    common = {"model": str(folder), "dtype": model.shape.dtype}
    if settings.engine == "transformers":
        weights = {"random_weights": model.random_weights, "seed": settings.seed}
        return {**common, **weights, "device": settings.device}
    engine = {
        **FORMAT,
        **common,
        **({"load_format": "dummy"} if model.random_weights else {}),
        "kv_cache_memory_bytes": settings.kv_memory_bytes,
        # Of no use beside the line above, but unless so much is free, vLLM does not start: and
        # the other models' engines are there already.
        "gpu_memory_utilization": 0.01,
        "max_model_len": settings.tokens,
        "max_num_seqs": max(settings.batches),
        "max_num_batched_tokens": max(settings.batches) * settings.prompt_tokens,
        "enable_prefix_caching": False,
        "enforce_eager": settings.enforce_eager,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    return {"engine": engine}
