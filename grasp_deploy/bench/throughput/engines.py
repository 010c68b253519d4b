"""The engines of the throughput bench: their checks, requests and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from grasp_deploy.bench.limits import check_positions, check_room
from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.throughput.record import ThroughputSettings
from grasp_deploy.checkpoint.deployment import Load, kv_bytes
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS, check_vllm_runs
from grasp_deploy.checkpoint.read.loading import resolve_device
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.engine.vllm_process import vllm_child_environment, vllm_platform
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel

MODULES = {
    "vllm": "grasp_deploy.bench.throughput.vllm_child",
    "transformers": "grasp_deploy.bench.throughput.transformers_child",
}


def checked(models: Sequence[BenchModel], settings: ThroughputSettings) -> ThroughputSettings:
    """Check settings and models without an engine, and fill in what was left open.

    Raises InputError for an engine that is not installed, for options of the other engine, and for
    models that cannot be measured with these settings.
    """

    check_positions(models, settings.tokens, "--prompt-tokens or --new-tokens")
    settings = replace(settings, random_weights=models[0].random_weights)
    if settings.engine == "vllm":
        settings = _checked_for_vllm(models, settings)
    elif settings.kv_memory_bytes is not None or settings.enforce_eager:
        raise InputError(
            "--kv-memory and --enforce-eager are options of vLLM: leave them out, or give "
            "--engine vllm"
        )
    settings = replace(settings, device=str(resolve_device(settings.device)))
    if settings.device == "cpu":
        check_memory(models, settings)
    return settings


def _checked_for_vllm(
    models: Sequence[BenchModel], settings: ThroughputSettings
) -> ThroughputSettings:
    platform = vllm_platform(settings.device, settings.enforce_eager)
    block = BLOCK_TOKENS[platform]
    memory = settings.kv_memory_bytes
    if memory is None:
        load = Load(max(settings.batches), settings.tokens, block_tokens=block)
        memory = kv_bytes(models[0].shape, load)
    for model in models:
        check_vllm_runs(model.shape, platform)
        least = kv_bytes(model.shape, Load(1, settings.tokens, block_tokens=block))
        if memory < least:
            raise InputError(
                f"--kv-memory of {memory:,} bytes does not hold one sequence of {settings.tokens} "
                f"tokens of {model.name}: give at least {ceil(least / 2**20)}MiB"
            )
    return replace(settings, device=platform, kv_memory_bytes=memory)


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


def check_memory(models: Sequence[BenchModel], settings: ThroughputSettings) -> None:
    """InputError if the models do not fit side by side in a machine without a GPU.

    All weights, and the caches: vLLM's pools stay, those of transformers come one at a time. A GPU
    says itself when it is full, but without one the kernel would kill programs.
    """
    needed_bytes = sum(model.shape.weight_bytes for model in models)
    if settings.engine == "vllm":
        needed_bytes += len(models) * (settings.kv_memory_bytes or 0)
    else:
        needed_bytes += max(_batch_bytes(model.shape, settings) for model in models)
    check_room(
        needed_bytes,
        f"{len(models)} models side by side take",
        "take smaller batches or shorter prompts, or compare fewer models at a time",
    )


def _batch_bytes(shape: ModelShape, settings: ThroughputSettings) -> int:
    """Bytes of the largest batch of transformers beside the weights."""
    batch = max(settings.batches)
    prefill = predict_prefill(shape, batch, settings.prompt_tokens)
    later = batch * settings.new_tokens * shape.kv_bytes_per_token()
    return prefill.peak_bytes - prefill.weight_bytes + later
