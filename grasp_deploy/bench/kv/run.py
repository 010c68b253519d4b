"""How many tokens and sequences a memory holds beside the weights, predicted and by vLLM."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from grasp_deploy.bench.kv.settings import KvSettings
from grasp_deploy.checkpoint.limits import Platform
from grasp_deploy.checkpoint.read.config_file import positions_at
from grasp_deploy.engine.capacity import BLOCK_TOKENS, kv_capacity, predict_capacity
from grasp_deploy.engine.serve import available_memory_bytes
from grasp_deploy.engine.vllm_process import installed_platform
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, model_folder
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record

DEFAULT_CONTEXT_TOKENS = 2048


def bench_kv(
    models: Sequence[BenchModel],
    settings: KvSettings,
    command: Sequence[str],
    on_progress: OnProgress = lambda row: None,
) -> dict[str, Any]:
    """Say what the KV cache of every model holds; gives a record of kind "kv".

    `models` start with the one that the others are compared with. A model's KV cache gets what its
    weights leave of the memory, so that smaller weights count too: `memory_bytes` of a cell. Where
    vLLM is installed, a real engine is started on each model with a cache of that size and asked;
    otherwise, and with `predict_only`, `measured` is None. `on_progress` hears rows of progress with
    `stage`, `step` and `steps`.

    Raises InputError for a context that a model was not made for and for a memory that does not
    hold one sequence beside the weights, ChildError if vLLM fails.
    """
    context_tokens = _context_tokens(models, settings.context_tokens)
    settings = replace(settings, context_tokens=context_tokens)
    platform = _vllm_platform()
    measures = platform is not None and not settings.predict_only
    if measures and platform == "cpu":
        _check_room(settings.memory_bytes)
    block_tokens = BLOCK_TOKENS[platform or "cuda"]
    cells = [
        _predicted(model, settings.memory_bytes, context_tokens, block_tokens) for model in models
    ]
    for done, (model, cell) in enumerate(zip(models, cells, strict=True), start=1):
        if measures:
            cell["measured"] = _measured(model, cell["memory_bytes"], context_tokens, settings.seed)
            on_progress({"stage": "asking vLLM", "step": done, "steps": len(models)})
    random_weights = any(model.random_weights for model in models)
    return new_record(
        "kv",
        command,
        {**asdict(settings), "block_tokens": block_tokens, "random_weights": random_weights},
        models=[model.as_dict() for model in models],
        cells=cells,
    )


def _predicted(
    model: BenchModel, memory_bytes: int, context_tokens: int, block_tokens: int
) -> dict[str, Any]:
    shape = model.shape
    pool_bytes = memory_bytes - shape.weight_bytes
    token_bytes = shape.kv_bytes_per_token()
    capacity = predict_capacity(pool_bytes, token_bytes, context_tokens, block_tokens)
    if capacity.sequences < 1:
        raise InputError(
            f"--memory holds {memory_bytes / 2**20:,.1f} MiB, which is too little for the "
            f"{shape.weight_bytes / 2**20:,.1f} MiB of {model.name}'s weights and one sequence of "
            f"{context_tokens} tokens of {token_bytes / 2**10:,.1f} KiB: ask for more "
            "memory or a shorter --context"
        )
    head_bytes = 2 * shape.head_dim * shape.bytes_per_parameter  # a key and a value
    return {
        "model": model.name,
        "memory_bytes": pool_bytes,
        "context_tokens": context_tokens,
        "kv_bytes_per_token": token_bytes,
        "layer_kv_bytes_per_token": [
            layer.num_key_value_heads * head_bytes for layer in shape.layers
        ],
        "predicted": asdict(capacity),
        "measured": None,
    }


def _measured(model: BenchModel, pool_bytes: int, context_tokens: int, seed: int) -> dict[str, int]:
    with model_folder(model) as directory:
        capacity = kv_capacity(
            directory,
            pool_bytes,
            context_tokens,
            dtype=model.shape.dtype,
            random_weights=model.random_weights,
            seed=seed,
        )
    return asdict(capacity)


def _context_tokens(models: Sequence[BenchModel], asked: int | None) -> int:
    """The length of a full sequence; InputError if a model was not made for what was asked."""
    positions = {model.name: positions_at(model.path) or sys.maxsize for model in models}
    if asked is None:
        return min(DEFAULT_CONTEXT_TOKENS, *positions.values())
    for name, longest in positions.items():
        if asked > longest:
            raise InputError(
                f"--context {asked} is longer than the {longest} positions that {name} was made "
                f"for: ask for {longest} or less"
            )
    return asked


def _vllm_platform() -> Platform | None:
    """What the installed vLLM was built for; None if there is none."""
    try:
        return installed_platform()
    except InputError:
        return None


def _check_room(memory_bytes: int) -> None:
    free_bytes = available_memory_bytes()
    if memory_bytes > free_bytes:
        raise InputError(
            f"--memory asks for {memory_bytes / 2**30:,.1f} GiB, and {free_bytes / 2**30:,.1f} GiB "
            "are free here: ask for less, or for --predict-only"
        )
