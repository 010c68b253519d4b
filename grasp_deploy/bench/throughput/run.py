"""Throughput and latency against batch size, of models side by side.

Each model has an engine in a child process of its own, and all stay alive. Every point is measured
in rounds, with a turn for every model (A B, B A, A B, ...): drifts of the machine slow all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from msgspec import convert

from grasp_deploy.bench.record import record_models
from grasp_deploy.bench.throughput.engines import MODULES, checked, environment_of, load_request
from grasp_deploy.bench.throughput.record import Cell, Sample, ThroughputRecord, ThroughputSettings
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, model_folder
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.record import new_record

PATIENCE_SECONDS = 6 * 3600.0  # a large batch on a CPU may take an hour
T = TypeVar("T")


def bench_throughput(
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> ThroughputRecord:
    """Measure every model at every batch size.

    A cell without samples says in `refused` why: that batch did not fit in the GPU's memory. Raises
    InputError for what cannot be measured, and ChildError if an engine fails.
    """
    settings = checked(models, settings)
    with ExitStack() as stack:
        asks = _start(stack, models, settings, on_progress)
        steps = len(settings.batches) * len(models) * (1 + settings.repetitions)
        advance = step_counter(on_progress, "measuring", steps)
        cells: list[Cell] = []
        for batch in settings.batches:
            cells += _cells_of_batch(batch, models, asks, settings, advance)
    if not any(cell.samples for cell in cells):
        raise InputError(str(cells[0].refused))
    header = new_record("throughput", command, settings, models=record_models(models), cells=cells)
    return ThroughputRecord(**header)


def rounds(models: Sequence[T], repetitions: int) -> list[list[T]]:
    """The models' turns in each round: in order, and backwards in every other round."""
    return [list(models[::-1] if index % 2 else models) for index in range(repetitions)]


def _start(
    stack: ExitStack,
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    on_progress: OnProgress,
) -> list[Ask]:
    module, environment = MODULES[settings.engine], environment_of(settings.engine)
    asks = []
    for model in models:  # all of them at once, because libraries take seconds to import
        name = f"{settings.engine} with {model.name}"
        started = child(module, environment, name=name, timeout_seconds=PATIENCE_SECONDS)
        asks.append(stack.enter_context(started))
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
    """Warm up every model with a batch of the same shape, then measure in rounds."""
    lengths: dict[str, Any] = {
        "prompt_tokens": settings.prompt_tokens,
        "new_tokens": settings.new_tokens,
    }
    cells = [
        Cell(model=model.name, engine=settings.engine, batch=batch, samples=[], **lengths)
        for model in models
    ]
    children = list(zip(asks, cells, strict=True))
    for number, turns in enumerate([children, *rounds(children, settings.repetitions)]):
        # Other prompts in each round, the same for all models.
        request = {"batch": batch, **lengths, "seed": settings.seed + number}
        for ask, cell in turns:
            _measure(ask, request, cell)
            if number == 0:
                cell.samples.clear()
            advance()
    return cells


def _measure(ask: Ask, request: dict[str, Any], cell: Cell) -> None:
    if cell.refused:
        return
    try:
        cell.samples.append(convert(ask(request), Sample))
    except InputError as error:
        cell.samples.clear()
        cell.refused = str(error)
