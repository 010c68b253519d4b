"""Throughput and latency against batch size, of models side by side.

Each model has an engine in a child process of its own, and all stay alive. Every point is measured
in rounds, and in each round every model has its turn (A B, B A, A B, ...). So what slows the
machine for a while slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from msgspec import convert

from grasp_deploy.bench.record import record_models
from grasp_deploy.bench.throughput.engines import (
    MODULES,
    check_memory,
    checked,
    environment_of,
    load_request,
)
from grasp_deploy.bench.throughput.record import Cell, RecordSettings, Sample, ThroughputRecord
from grasp_deploy.bench.throughput.settings import ThroughputSettings
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, model_folder
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.record import new_record

PATIENCE_SECONDS = 6 * 3600.0  # a large batch on a CPU may take an hour


def bench_throughput(
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> ThroughputRecord:
    """Measure every model at every batch size.

    `models` start with the one that the others are compared with. `command` is recorded. A cell
    without samples says in `refused` why: that batch did not fit in the GPU's memory.

    Raises InputError for what cannot be measured, and ChildError if an engine fails.
    """
    settings = checked(models, settings)
    with ExitStack() as stack:
        asks = _start(stack, models, settings, on_progress)
        steps = len(settings.batches) * len(models) * (1 + settings.repetitions)
        advance = step_counter(on_progress, "measuring", steps)
        cells = [
            cell
            for batch in settings.batches
            for cell in _cells_of_batch(batch, models, asks, settings, advance)
        ]
    if not any(cell.samples for cell in cells):
        raise InputError(str(cells[0].refused))
    random_weights = any(model.random_weights for model in models)
    noted = RecordSettings(**asdict(settings), random_weights=random_weights)
    return ThroughputRecord(
        **new_record("throughput", command, noted, models=record_models(models), cells=cells)
    )


def rounds(models: int, repetitions: int) -> list[list[int]]:
    """The models' turns in each round: in order, and backwards in every other round."""
    forwards = list(range(models))
    return [forwards[::-1] if index % 2 else forwards for index in range(repetitions)]


def _start(
    stack: ExitStack,
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    on_progress: OnProgress,
) -> list[Ask]:
    """A child for each model, with the model loaded; they live as long as the stack."""
    environment = environment_of(settings.engine)
    asks = [
        stack.enter_context(
            child(
                MODULES[settings.engine],
                environment,
                name=f"{settings.engine} with {model.name}",
                timeout_seconds=PATIENCE_SECONDS,
            )
        )
        for model in models
    ]
    check_memory(models, settings, asks[0])
    advance = step_counter(on_progress, "starting engines", len(models))
    for model, ask in zip(models, asks, strict=True):
        ask(load_request(model, stack.enter_context(model_folder(model)), settings))
        advance()
    return asks


def _cells_of_batch(
    batch: int,
    models: Sequence[BenchModel],
    asks: Sequence[Ask],
    settings: ThroughputSettings,
    advance: Callable[[], None],
) -> list[Cell]:
    """Warm every model up with a batch like those to come, then measure them in rounds."""
    prompt_tokens, new_tokens = settings.prompt_tokens, settings.new_tokens
    cells = [
        Cell(
            model=model.name,
            engine=settings.engine,
            batch=batch,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            samples=[],
        )
        for model in models
    ]
    size = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    warm_up = list(range(len(models)))
    turns = [warm_up, *rounds(len(models), settings.repetitions)]
    for round_number, order in enumerate(turns):
        # Other prompts in each round, the same for all models.
        request = {"do": "measure", **size, "seed": settings.seed + round_number}
        for index in order:
            _measure(asks[index], request, cells[index])
            if order is warm_up:
                cells[index].samples.clear()
            advance()
    return cells


def _measure(ask: Ask, request: dict[str, Any], cell: Cell) -> None:
    """Add a sample to a cell, or the reason why it has none."""
    if cell.refused:
        return
    try:
        cell.samples.append(convert(ask(request), Sample))
    except InputError as error:
        cell.samples.clear()
        cell.refused = str(error)
