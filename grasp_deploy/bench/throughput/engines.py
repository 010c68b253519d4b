"""The engines of the throughput bench: what they are told, and whether the machine has room."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.throughput.timing import quiet_environment
from grasp_deploy.bench.throughput.vllm_child import vllm_load_request
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import check_head_size
from grasp_deploy.checkpoint.read.config_file import positions_at
from grasp_deploy.engine.capacity import BLOCK_TOKENS
from grasp_deploy.engine.checks import vllm_platform
from grasp_deploy.engine.child import Ask
from grasp_deploy.engine.serve import available_memory_bytes
from grasp_deploy.engine.vllm_process import vllm_child_environment
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel

MODULES = {
    "vllm": "grasp_deploy.bench.throughput.vllm_child",
    "transformers": "grasp_deploy.bench.throughput.transformers_child",
}


@dataclass(frozen=True)
class ThroughputSettings:
    """What is measured, and how; the same for all models."""

    engine: str = "vllm"
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    prompt_tokens: int = 2048
    new_tokens: int = 256
    repetitions: int = 3
    kv_memory_bytes: int | None = None  # of each model; None: the largest batch of the first one
    device: str = "auto"
    dtype: str = "auto"
    enforce_eager: bool = False
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Of one sequence at its end."""
        return self.prompt_tokens + self.new_tokens


def checked(models: Sequence[BenchModel], settings: ThroughputSettings) -> ThroughputSettings:
    """The settings with what was left open filled in, after all checks that need no engine.

    Raises InputError for an unknown engine or one that is not installed, for options that are the
    other engine's, and for a model that cannot be measured with these settings.
    """
    check_lengths(models, settings.prompt_tokens, settings.new_tokens)
    if settings.engine == "transformers":
        return _checked_for_transformers(settings)
    if settings.engine != "vllm":
        raise InputError(f"--engine {settings.engine} is unknown: use vllm or transformers")
    return _checked_for_vllm(models, settings)


def check_lengths(models: Sequence[BenchModel], prompt_tokens: int, new_tokens: int) -> None:
    """InputError if a prompt with its continuation is longer than a model has positions."""
    for model in models:
        positions = positions_at(model.path)
        if positions is not None and prompt_tokens + new_tokens > positions:
            raise InputError(
                f"{prompt_tokens} prompt tokens and {new_tokens} new ones exceed the {positions} "
                f"positions that {model.name} was made for: lower --prompt-tokens or --new-tokens"
            )


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
    for model in models:
        check_head_size(model.shape, platform)
    block = BLOCK_TOKENS[platform]
    memory = settings.kv_memory_bytes
    if memory is None:
        memory = kv_pool_bytes(models[0].shape, max(settings.batches), settings.tokens, block)
    for model in models:
        least = kv_pool_bytes(model.shape, 1, settings.tokens, block)
        if memory < least:
            raise InputError(
                f"--kv-memory of {memory:,} bytes does not hold one sequence of {settings.tokens} "
                f"tokens of {model.name}: give at least {ceil(least / 2**20)}MiB"
            )
    return replace(settings, device=platform, kv_memory_bytes=memory)


def kv_pool_bytes(shape: ModelShape, batch: int, tokens: int, block_tokens: int) -> int:
    """What `batch` sequences take in vLLM's KV cache, in whole blocks and one that it keeps."""
    blocks = batch * ceil(tokens / block_tokens) + 1
    return blocks * block_tokens * shape.kv_bytes_per_token()


def environment_of(engine: str) -> dict[str, str]:
    """What an engine's child is started with."""
    return quiet_environment(vllm_child_environment() if engine == "vllm" else os.environ)


def load_request(model: BenchModel, folder: Path, settings: ThroughputSettings) -> dict[str, Any]:
    """The request that makes a child load a model, whose config.json is in this folder."""
    common: dict[str, Any] = {
        "model": str(folder),
        "dtype": model.shape.dtype,
        "random_weights": model.random_weights,
    }
    if settings.engine == "transformers":
        return {"do": "load", **common, "device": settings.device, "seed": settings.seed}
    assert settings.kv_memory_bytes is not None, "filled in by the checks"
    return vllm_load_request(
        **common,
        kv_cache_bytes=settings.kv_memory_bytes,
        largest_batch=max(settings.batches),
        prompt_tokens=settings.prompt_tokens,
        new_tokens=settings.new_tokens,
        enforce_eager=settings.enforce_eager,
    )


def check_memory(models: Sequence[BenchModel], settings: ThroughputSettings, ask: Ask) -> None:
    """InputError if the models cannot be alive side by side; `ask` is a child that has none yet."""
    device = {"device": settings.device} if settings.engine == "transformers" else {}
    free = ask({"do": "free_memory", **device})["free_memory_bytes"]
    if free is None and settings.device.startswith("cuda"):
        raise InputError(
            "the installed vLLM needs a GPU and none is visible here: look at nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or give --engine transformers"
        )
    needed = _needed_bytes(models, settings, on_gpu=free is not None)
    free = available_memory_bytes() if free is None else free
    if needed > free:
        raise InputError(
            f"{len(models)} models side by side take {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free: take smaller batches or shorter prompts, compare "
            "fewer models at a time" + (", or set --kv-memory" if settings.engine == "vllm" else "")
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
    """What a batch of transformers' takes beside the weights."""
    prefill = predict_prefill(shape, batch, settings.prompt_tokens)
    later = batch * settings.new_tokens * shape.kv_bytes_per_token()
    return prefill.peak_bytes - prefill.weight_bytes + later
