"""Memory of one prefill, predicted and measured, of models side by side."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import replace

from msgspec import convert, structs

from grasp_deploy.bench.limits import check_positions, check_room
from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.memory.record import Cell, MemoryRecord, MemorySettings, Sample, Sizes
from grasp_deploy.bench.record import record_models
from grasp_deploy.checkpoint.read.loading import resolve_device
from grasp_deploy.engine.child import child
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.record import new_record

CHILD = "grasp_deploy.bench.memory.child"
# Resident memory must follow the tensors that are alive. So the C library takes each from the
# kernel and returns it at once (by default it would keep freed memory), and threads share one heap.
ALLOCATOR_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**10),
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}


def bench_memory(
    models: Sequence[BenchModel],
    settings: MemorySettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> MemoryRecord:
    """Measure a prefill of every model at every length, each in a child process of its own.

    Raises InputError for a device that is not there or too small, ChildError if a child fails.
    """
    device = str(resolve_device(settings.device))
    settings = replace(settings, device=device, random_weights=models[0].random_weights)
    check_positions(models, max(settings.prompt_tokens), "--prompt-tokens")
    points = [(model, tokens) for model in models for tokens in settings.prompt_tokens]
    for model, tokens in points if device == "cpu" else []:
        check_room(
            predict_prefill(model.shape, settings.batch, tokens).peak_bytes,
            f"{settings.batch} prompts of {tokens} tokens of {model.name} take",
            "ask for fewer or shorter prompts",
        )
    cells = []
    advance = step_counter(on_progress, "measuring prefills", len(points))
    for model, tokens in points:
        cells.append(measured_cell(model, tokens, settings))
        advance()
    header = new_record("memory", command, settings, models=record_models(models), cells=cells)
    return MemoryRecord(**header)


def measured_cell(model: BenchModel, prompt_tokens: int, settings: MemorySettings) -> Cell:
    """Predict the prefills of random prompts of this length, and measure them in a child."""
    request = {
        "path": str(model.path),
        "random_weights": model.random_weights,
        "device": settings.device,
        "dtype": model.shape.dtype,
        "seed": settings.seed,
        "batch": settings.batch,
        "prompt_tokens": prompt_tokens,
        "repetitions": settings.repetitions,
    }
    with child(CHILD, {**os.environ, **ALLOCATOR_SETTINGS}, name="the memory child") as ask:
        samples = convert(ask(request)["samples"], list[Sample])
    return Cell(
        model=model.name,
        prompt_tokens=prompt_tokens,
        batch=settings.batch,
        predicted=predict_prefill(model.shape, settings.batch, prompt_tokens),
        measured=_medians(samples),
        samples=samples,
    )


def _medians(samples: Sequence[Sample]) -> Sizes:
    known = [key for key, value in structs.asdict(samples[0]).items() if value is not None]
    medians = {key: round(statistics.median(getattr(s, key) for s in samples)) for key in known}
    other = medians["peak_bytes"] - medians["weight_bytes"] - medians["kv_bytes"]
    return Sizes(**medians, other_bytes=other)
