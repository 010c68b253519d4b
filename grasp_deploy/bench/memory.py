"""`bench memory`: memory of one prefill, predicted from config.json and measured."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import Struct, convert, to_builtins

from grasp_deploy.bench.record import (
    BenchCell,
    BenchRecord,
    Count,
    PositiveCount,
    check_positions,
    check_room,
)
from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    REPETITIONS_HELP,
    Seed,
    option,
)
from grasp_deploy.config.option import Count as CountOption
from grasp_deploy.engine.child import child
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter

if TYPE_CHECKING:  # it imports safetensors, which no help text needs
    from grasp_deploy.evaluate.models import BenchModel

CHILD = "grasp_deploy.bench.engines.memory_child"
# Resident memory must follow the tensors that are alive. So the C library takes each from the
# kernel and returns it at once (by default it would keep freed memory), and threads share one heap.
ALLOCATOR_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**10),
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class MemorySettings:
    """The prefills to measure: `batch` prompts at each length."""

    prompt_tokens: tuple[CountOption, ...] = option(
        "Tokens of a prompt, one measurement for each length.", (256, 512, 1024, 2048)
    )
    batch: CountOption = option("Prompts in a prefill.", 4)
    repetitions: CountOption = option(REPETITIONS_HELP, 3)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
    random_weights: bool = False  # filled in for the record


class Sizes(Struct, frozen=True, omit_defaults=True):
    """Bytes of a prefill, predicted or measured."""

    weight_bytes: Count
    kv_bytes: Count
    peak_bytes: PositiveCount  # weights and KV cache included
    other_bytes: Count = 0  # peak - weights - KV cache; samples go without


class Cell(BenchCell):
    """One model at one prompt length; `measured` are the medians of the samples."""

    prompt_tokens: PositiveCount
    batch: PositiveCount
    predicted: Sizes
    measured: Sizes
    samples: list[Sizes]

    @property
    def point(self) -> int:
        return self.prompt_tokens


class MemoryRecord(BenchRecord[Cell], kw_only=True):
    """All models at all prompt lengths."""

    settings: MemorySettings


def bench_memory(
    models: Sequence[BenchModel],
    settings: MemorySettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> MemoryRecord:
    """Measure a prefill of every model at every length, each in a child process of its own.

    Raises InputError for a device that is not there or too small, ChildError if a child fails.
    """
    from grasp_deploy.bench.prefill import predict_prefill  # help needs no torch
    from grasp_deploy.checkpoint.read.loading import resolve_device

    device = str(resolve_device(settings.device))
    settings = replace(settings, device=device, random_weights=models[0].random_weights)
    check_positions(models, max(settings.prompt_tokens), "--prompt-tokens")
    points = [(model, tokens) for model in models for tokens in settings.prompt_tokens]
    for model, tokens in points if device == "cpu" else []:
        check_room(
            predict_prefill(model, settings.batch, tokens).peak_bytes,
            f"{settings.batch} prompts of {tokens} tokens of {model.name} take",
            "ask for fewer or shorter prompts",
        )
    cells = []
    advance = step_counter(on_progress, "measuring prefills", len(points))
    for model, tokens in points:
        cells.append(measured_cell(model, tokens, settings))
        advance()
    return MemoryRecord.made("memory", command, settings, models, cells)


def measured_cell(model: BenchModel, prompt_tokens: int, settings: MemorySettings) -> Cell:
    """Predict the prefills of random prompts of this length, and measure them in a child."""
    from grasp_deploy.bench.prefill import predict_prefill

    request = {
        "model": str(model.path),
        "dtype": model.shape.dtype,
        "random_weights": model.random_weights,
        "prompt_tokens": prompt_tokens,
        "settings": to_builtins(settings),
    }
    with child(CHILD, {**os.environ, **ALLOCATOR_SETTINGS}, name="the memory child") as ask:
        samples = convert(ask(request)["samples"], list[Sizes])
    weights, kv, peak = (
        round(statistics.median(getattr(sample, f"{name}_bytes") for sample in samples))
        for name in ("weight", "kv", "peak")
    )
    predicted = predict_prefill(model, settings.batch, prompt_tokens)
    measured = Sizes(weights, kv, peak, peak - weights - kv)
    return Cell(model.name, prompt_tokens, settings.batch, predicted, measured, samples)
