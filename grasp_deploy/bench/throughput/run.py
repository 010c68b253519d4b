"""Throughput and latency against batch size, of models side by side.

Each model has an engine in a child process of its own, and all stay alive. Every point is measured
in rounds, and in each round every model has its turn (A B, B A, A B, ...), so that what slows the
machine for a while slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count
from typing import Any

from grasp_deploy.bench.throughput.engines import (
    MODULES,
    check_memory,
    checked,
    environment_of,
    load_request,
)
from grasp_deploy.bench.throughput.settings import ThroughputSettings
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, model_folder
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record

PATIENCE_SECONDS = 6 * 3600.0  # a large batch on a CPU may take an hour


def bench_throughput(
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    command: Sequence[str],
    on_progress: OnProgress = lambda row: None,
) -> dict[str, Any]:
    """Measure every model at every batch size; gives a record of kind "throughput".

    `models` start with the one that the others are compared with. `on_progress` hears rows of progress
    with `stage`, `step` and `steps`. A cell without samples says in `refused` why: that batch did
    not fit in the GPU's memory.

    Raises InputError for what cannot be measured, and ChildError if an engine fails.
    """
    settings = checked(models, settings)
    with ExitStack() as stack:
        asks = _start(stack, models, settings, on_progress)
        cells = _cells(models, asks, settings, on_progress)
    if not any(cell["samples"] for cell in cells):
        raise InputError(str(cells[0]["refused"]))
    noted = {
        "batches": list(settings.batches),
        "random_weights": any(model.random_weights for model in models),
        "prefix_caching": False,
    }
    return new_record(
        "throughput",
        command,
        {**asdict(settings), **noted},
        models=[model.as_dict() for model in models],
        cells=cells,
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
    for index, (model, ask) in enumerate(zip(models, asks, strict=True)):
        on_progress({"stage": "starting engines", "step": index, "steps": len(models)})
        ask(load_request(model, stack.enter_context(model_folder(model)), settings))
    on_progress({"stage": "starting engines", "step": len(models), "steps": len(models)})
    return asks


def _cells(
    models: Sequence[BenchModel],
    asks: Sequence[Ask],
    settings: ThroughputSettings,
    on_progress: OnProgress,
) -> list[dict[str, Any]]:
    """The cells of all batch sizes, those of one batch side by side."""
    steps = len(settings.batches) * len(models) * (1 + settings.repetitions)
    done = count(1)

    def ran() -> None:
        on_progress({"stage": "measuring", "step": next(done), "steps": steps})

    return [
        cell
        for batch in settings.batches
        for cell in _cells_of_batch(batch, models, asks, settings, ran)
    ]


def _cells_of_batch(
    batch: int,
    models: Sequence[BenchModel],
    asks: Sequence[Ask],
    settings: ThroughputSettings,
    ran: Callable[[], None],
) -> list[dict[str, Any]]:
    """Warm every model up with a batch like those to come, then measure them in rounds."""
    lengths = {"prompt_tokens": settings.prompt_tokens, "new_tokens": settings.new_tokens}
    request: dict[str, Any] = {"do": "measure", "batch": batch, **lengths}
    request["seed"] = settings.seed
    cells: list[dict[str, Any]] = [
        {"model": model.name, "engine": settings.engine, "batch": batch, **lengths, "samples": []}
        for model in models
    ]
    for cell, ask in zip(cells, asks, strict=True):
        _run(ask, request, cell)
        cell["samples"].clear()
        ran()
    for order in rounds(len(models), settings.repetitions):
        request["seed"] += 1  # other prompts, the same for all models
        for index in order:
            _run(asks[index], request, cells[index])
            ran()
    return cells


def _run(ask: Ask, request: dict[str, Any], cell: dict[str, Any]) -> None:
    """Add a sample to a cell, or the reason why it has none."""
    if "refused" in cell:
        return
    try:
        cell["samples"].append(ask(request))
    except InputError as error:
        cell["samples"].clear()
        cell["refused"] = str(error)
