"""What one prefill takes, predicted and measured, of models side by side."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from grasp_deploy.bench.memory.measure import prefill_memory
from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.memory.settings import MemorySettings
from grasp_deploy.checkpoint.read.config_file import positions_at
from grasp_deploy.checkpoint.read.loading import resolve_device
from grasp_deploy.engine.serve import available_memory_bytes
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record
from grasp_deploy.files.sizes import format_bytes


def bench_memory(
    models: Sequence[BenchModel],
    settings: MemorySettings,
    command: Sequence[str],
    on_progress: OnProgress = lambda row: None,
) -> dict[str, Any]:
    """Measure a prefill of every model at every length; gives a record of kind "memory".

    `models` start with the one that the others are compared with. Each cell has a child process of
    its own, and `measured` is the median of its samples. `on_progress` hears rows of progress with
    `stage`, `step` and `steps`.

    Raises InputError for a device that is not there or too small, ChildError if a child fails.
    """
    settings = replace(settings, device=str(resolve_device(settings.device)))
    _check_lengths(models, settings.prompt_tokens)
    points = [(model, tokens) for model in models for tokens in settings.prompt_tokens]
    if settings.device == "cpu":
        _check_room(points, settings.batch)
    cells = []
    for model, tokens in points:
        cells.append(_cell(model, tokens, settings))
        on_progress({"stage": "measuring prefills", "step": len(cells), "steps": len(points)})
    random_weights = any(model.random_weights for model in models)
    return new_record(
        "memory",
        command,
        {**asdict(settings), "random_weights": random_weights},
        models=[model.as_dict() for model in models],
        cells=cells,
    )


def _check_lengths(models: Sequence[BenchModel], prompt_tokens: Sequence[int]) -> None:
    """InputError if a prompt is longer than a model has positions."""
    for model in models:
        positions = positions_at(model.path) or sys.maxsize
        if max(prompt_tokens) > positions:
            raise InputError(
                f"a prompt of {max(prompt_tokens)} tokens is longer than the {positions} positions "
                f"that {model.name} was made for: give --prompt-tokens of {positions} or less"
            )


def _cell(model: BenchModel, prompt_tokens: int, settings: MemorySettings) -> dict[str, Any]:
    samples = prefill_memory(
        model.path,
        batch=settings.batch,
        prompt_tokens=prompt_tokens,
        random_weights=model.random_weights,
        device=settings.device,
        dtype=model.shape.dtype,
        seed=settings.seed,
        repetitions=settings.repetitions,
    )
    return {
        "model": model.name,
        "prompt_tokens": prompt_tokens,
        "batch": settings.batch,
        "predicted": predict_prefill(model.shape, settings.batch, prompt_tokens).as_dict(),
        "measured": _medians(samples),
        "samples": samples,
    }


def _medians(samples: list[dict[str, int]]) -> dict[str, int]:
    medians = {key: round(statistics.median(s[key] for s in samples)) for key in samples[0]}
    other = medians["peak_bytes"] - medians["weight_bytes"] - medians["kv_bytes"]
    return {**medians, "other_bytes": other}


def _check_room(points: Sequence[tuple[BenchModel, int]], batch: int) -> None:
    """On a CPU the kernel would end some process or other; refuse before that."""
    free_bytes = available_memory_bytes()
    for model, tokens in points:
        needed_bytes = predict_prefill(model.shape, batch, tokens).peak_bytes
        if needed_bytes > free_bytes:
            raise InputError(
                f"{model.name} needs {format_bytes(needed_bytes, 1)} for {batch} prompts of {tokens} tokens, "
                f"and {format_bytes(free_bytes, 1)} are free here: ask for fewer or shorter prompts"
            )
