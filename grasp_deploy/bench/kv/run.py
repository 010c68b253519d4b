"""Tokens and sequences that a memory holds beside the weights, predicted and by vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from grasp_deploy.bench.kv.record import Cell, KvRecord, KvSettings
from grasp_deploy.bench.limits import check_positions, check_room
from grasp_deploy.bench.record import record_models
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS, Platform, installed_platform
from grasp_deploy.checkpoint.read.source import positions_at
from grasp_deploy.engine.offline import kv_capacity, predict_capacity
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, model_folder
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.record import new_record

DEFAULT_CONTEXT_TOKENS = 2048


def bench_kv(
    models: Sequence[BenchModel],
    settings: KvSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> KvRecord:
    """Predict what the KV cache of every model holds, and ask vLLM where it is installed.

    A model's KV cache gets what its weights leave of the memory, so that smaller weights count too.
    A real engine is started on each model with a cache of that size, unless `predict_only` is set.
    Raises InputError for a context that a model was not made for and for a memory that does not
    hold one sequence beside the weights, ChildError if vLLM fails.
    """
    context_tokens = _context_tokens(models, settings.context_tokens)
    platform: Platform | None = None
    with suppress(InputError):
        platform = installed_platform()
    measures = platform is not None and not settings.predict_only
    if measures and platform == "cpu":
        check_room(settings.memory_bytes, "--memory is", "ask for less, or give --predict-only")
    settings = replace(
        settings,
        context_tokens=context_tokens,
        block_tokens=BLOCK_TOKENS[platform or "cuda"],
        random_weights=models[0].random_weights,
    )
    cells = [_predicted(model, settings, context_tokens) for model in models]
    if measures:
        advance = step_counter(on_progress, "asking vLLM", len(models))
        for model, cell in zip(models, cells, strict=True):
            with model_folder(model) as directory:
                cell.measured = kv_capacity(
                    directory,
                    cell.memory_bytes,
                    cell.context_tokens,
                    dtype=model.shape.dtype,
                    random_weights=model.random_weights,
                    seed=settings.seed,
                )
            advance()
    header = new_record("kv", command, settings, models=record_models(models), cells=cells)
    return KvRecord(**header)


def _predicted(model: BenchModel, settings: KvSettings, context_tokens: int) -> Cell:
    shape, memory_bytes = model.shape, settings.memory_bytes
    pool_bytes = memory_bytes - shape.weight_bytes
    token_bytes = shape.kv_bytes_per_token()
    capacity = predict_capacity(pool_bytes, token_bytes, context_tokens, settings.block_tokens)
    if capacity.sequences < 1:
        raise InputError(
            f"--memory holds {memory_bytes / 2**20:,.1f} MiB, which is too little for the "
            f"{shape.weight_bytes / 2**20:,.1f} MiB of {model.name}'s weights and one sequence of "
            f"{context_tokens} tokens of {token_bytes / 2**10:,.1f} KiB: ask for more "
            "memory or a shorter --context"
        )
    head_bytes = 2 * shape.head_dim * shape.bytes_per_parameter  # a key and a value
    return Cell(
        model=model.name,
        memory_bytes=pool_bytes,
        context_tokens=context_tokens,
        kv_bytes_per_token=token_bytes,
        layer_kv_bytes_per_token=[layer.num_key_value_heads * head_bytes for layer in shape.layers],
        predicted=capacity,
        measured=None,
    )


def _context_tokens(models: Sequence[BenchModel], asked: int | None) -> int:
    """The length of a full sequence; InputError if a model was not made for what was asked."""
    if asked is None:
        known = filter(None, (positions_at(model.path) for model in models))
        return min([DEFAULT_CONTEXT_TOKENS, *known])
    check_positions(models, asked, "--context")
    return asked
