"""The engines of the throughput bench: their checks, requests and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from grasp_deploy.bench.limits import check_room, check_sequence
from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.throughput.settings import ThroughputSettings
from grasp_deploy.bench.throughput.timing import quiet_environment
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import check_head_size
from grasp_deploy.engine.child import Ask
from grasp_deploy.engine.vllm_process import BLOCK_TOKENS, vllm_child_environment, vllm_platform
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel

MODULES = {
    "vllm": "grasp_deploy.bench.throughput.vllm_child",
    "transformers": "grasp_deploy.bench.throughput.transformers_child",
}


def checked(models: Sequence[BenchModel], settings: ThroughputSettings) -> ThroughputSettings:
    """Check settings and models without an engine, and fill in what was left open.

    Raises InputError for an unknown engine or one that is not installed, for options of the other
    engine, and for a model that cannot be measured with these settings.
    """
    check_sequence(models, settings.prompt_tokens, settings.new_tokens)
    if settings.engine == "transformers":
        return _checked_for_transformers(settings)
    if settings.engine != "vllm":
        raise InputError(f"--engine {settings.engine} is unknown: use vllm or transformers")
    return _checked_for_vllm(models, settings)


def _checked_for_transformers(settings: ThroughputSettings) -> ThroughputSettings:
    from grasp_deploy.checkpoint.read.loading import resolve_device

    if settings.kv_memory_bytes is not None or settings.enforce_eager:
        option = "--enforce-eager" if settings.enforce_eager else "--kv-memory"
        raise InputError(f"{option} is an option of vLLM: leave it out, or give --engine vllm")
    return replace(settings, device=str(resolve_device(settings.device)))


def _checked_for_vllm(
    models: Sequence[BenchModel], settings: ThroughputSettings
) -> ThroughputSettings:
    platform = vllm_platform(settings.device, settings.enforce_eager)
    block = BLOCK_TOKENS[platform]
    memory = settings.kv_memory_bytes
    if memory is None:
        memory = kv_pool_bytes(models[0].shape, max(settings.batches), settings.tokens, block)
    for model in models:
        check_head_size(model.shape, platform)
        least = kv_pool_bytes(model.shape, 1, settings.tokens, block)
        if memory < least:
            raise InputError(
                f"--kv-memory of {memory:,} bytes does not hold one sequence of {settings.tokens} "
                f"tokens of {model.name}: give at least {ceil(least / 2**20)}MiB"
            )
    return replace(settings, device=platform, kv_memory_bytes=memory)


def kv_pool_bytes(shape: ModelShape, batch: int, tokens: int, block_tokens: int) -> int:
    """Bytes of `batch` sequences in vLLM's KV cache: whole blocks, and one that vLLM keeps."""
    blocks = batch * ceil(tokens / block_tokens) + 1
    return blocks * block_tokens * shape.kv_bytes_per_token()


def environment_of(engine: str) -> dict[str, str]:
    """The environment of an engine's child."""
    return quiet_environment(vllm_child_environment() if engine == "vllm" else os.environ)


def load_request(model: BenchModel, folder: Path, settings: ThroughputSettings) -> dict[str, Any]:
    """The request that makes a child load a model, whose config.json is in this folder."""
    if settings.engine == "vllm":
        return {"do": "load", "engine": _vllm_arguments(model, folder, settings)}
    return {
        "do": "load",
        "model": str(folder),
        "dtype": model.shape.dtype,
        "random_weights": model.random_weights,
        "device": settings.device,
        "seed": settings.seed,
    }


def _vllm_arguments(
    model: BenchModel, folder: Path, settings: ThroughputSettings
) -> dict[str, Any]:
    """Arguments of vLLM's LLM, with room for whole batches.

    One step may prefill the whole of the largest batch. With vLLM's own limit the first requests
    would decode while the last ones wait for their prefill: TTFT and TPOT would mix both phases.
    """
    return {
        "model": str(folder),
        "dtype": model.shape.dtype,
        "load_format": "dummy" if model.random_weights else "auto",
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


def check_memory(models: Sequence[BenchModel], settings: ThroughputSettings, ask: Ask) -> None:
    """InputError if the models do not fit side by side; `ask` is a child that has none yet."""
    device = {"device": settings.device} if settings.engine == "transformers" else {}
    free_bytes = ask({"do": "free_memory", **device})["free_memory_bytes"]
    if free_bytes is None and settings.device.startswith("cuda"):
        raise InputError(
            "the installed vLLM needs a GPU and none is visible here: look at nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or give --engine transformers"
        )
    check_room(
        _needed_bytes(models, settings, on_gpu=free_bytes is not None),
        f"{len(models)} models side by side take",
        "take smaller batches or shorter prompts, compare fewer models at a time"
        + (", or set --kv-memory" if settings.engine == "vllm" else ""),
        free_bytes,
    )


def _needed_bytes(models: Sequence[BenchModel], settings: ThroughputSettings, on_gpu: bool) -> int:
    """All weights, and the caches: vLLM's pools stay, those of transformers come one at a time."""
    weights = sum(model.shape.weight_bytes for model in models)
    if settings.engine == "vllm":
        return weights + len(models) * (settings.kv_memory_bytes or 0)
    # A GPU says when it is full, and the bench goes on. Without one the kernel would kill programs.
    batch = min(settings.batches) if on_gpu else max(settings.batches)
    return weights + max(_batch_bytes(model.shape, batch, settings) for model in models)


def _batch_bytes(shape: ModelShape, batch: int, settings: ThroughputSettings) -> int:
    """Bytes of a batch of transformers beside the weights."""
    prefill = predict_prefill(shape, batch, settings.prompt_tokens)
    later = batch * settings.new_tokens * shape.kv_bytes_per_token()
    return prefill.peak_bytes - prefill.weight_bytes + later
