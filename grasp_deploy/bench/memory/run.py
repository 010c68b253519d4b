"""Memory of one prefill, predicted and measured, of models side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace

from msgspec import convert, structs

from grasp_deploy.bench.limits import check_positions, check_room
from grasp_deploy.bench.memory.measure import prefill_memory
from grasp_deploy.bench.memory.prefill import predict_prefill
from grasp_deploy.bench.memory.record import Cell, MemoryRecord, RecordSettings, Sample, Sizes
from grasp_deploy.bench.memory.settings import MemorySettings
from grasp_deploy.bench.record import record_models
from grasp_deploy.checkpoint.read.loading import resolve_device
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.record import new_record


def bench_memory(
    models: Sequence[BenchModel],
    settings: MemorySettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> MemoryRecord:
    """Measure a prefill of every model at every length, each in a child process of its own.

    `models` start with the one that the others are compared with. `command` is recorded. Raises
    InputError for a device that is not there or too small, ChildError if a child fails.
    """
    settings = replace(settings, device=str(resolve_device(settings.device)))
    longest = max(settings.prompt_tokens)
    remedy = "lower --prompt-tokens"
    check_positions(models, longest, f"prompts of {longest} tokens", remedy)
    points = [(model, tokens) for model in models for tokens in settings.prompt_tokens]
    if settings.device == "cpu":
        _check_room(points, settings.batch)
    cells = []
    advance = step_counter(on_progress, "measuring prefills", len(points))
    for model, tokens in points:
        cells.append(_cell(model, tokens, settings))
        advance()
    random_weights = any(model.random_weights for model in models)
    noted = RecordSettings(**asdict(settings), random_weights=random_weights)
    return MemoryRecord(
        **new_record("memory", command, noted, models=record_models(models), cells=cells)
    )


def _cell(model: BenchModel, prompt_tokens: int, settings: MemorySettings) -> Cell:
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
    predicted = predict_prefill(model.shape, settings.batch, prompt_tokens)
    return Cell(
        model=model.name,
        prompt_tokens=prompt_tokens,
        batch=settings.batch,
        predicted=convert(predicted.as_dict(), Sizes),
        measured=_medians(samples),
        samples=samples,
    )


def _medians(samples: Sequence[Sample]) -> Sizes:
    known = [key for key, value in structs.asdict(samples[0]).items() if value is not None]
    medians = {key: round(statistics.median(getattr(s, key) for s in samples)) for key in known}
    other = medians["peak_bytes"] - medians["weight_bytes"] - medians["kv_bytes"]
    return Sizes(**medians, other_bytes=other)


def _check_room(points: Sequence[tuple[BenchModel, int]], batch: int) -> None:
    for model, tokens in points:
        check_room(
            predict_prefill(model.shape, batch, tokens).peak_bytes,
            f"{batch} prompts of {tokens} tokens of {model.name} take",
            "ask for fewer or shorter prompts",
        )
