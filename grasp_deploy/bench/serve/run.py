"""Load on the live server, of models one after the other, with vLLM's own load generator.

This bench adds the pairing: every model gets the same requests, in the same order of loads, from a
server with the same flags, started for it alone. Each repetition starts all servers again, in the
opposite order.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import convert

from grasp_deploy.bench.limits import check_positions
from grasp_deploy.bench.record import record_models
from grasp_deploy.bench.serve.record import Cell, LoadPoint, Sample, ServeRecord, ServeSettings
from grasp_deploy.bench.serve.vllm_bench import bench_serve_environment, load_arguments
from grasp_deploy.bench.throughput.run import rounds
from grasp_deploy.checkpoint.limits import installed_platform
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.engine.flags import read_flags
from grasp_deploy.engine.serve import (
    available_memory_bytes,
    check_before_serving,
    cpu_cache_bytes,
    running_server,
)
from grasp_deploy.engine.vllm_process import CACHE_VARIABLE
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.record import new_record

CLIENT = "grasp_deploy.bench.serve.vllm_bench"
PATIENCE_SECONDS = 12 * 3600.0  # 500 long requests, one after the other, on a CPU
START_SECONDS = 1800.0


def bench_serve(
    models: Sequence[BenchModel],
    settings: ServeSettings,
    vllm_arguments: Sequence[str],
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> ServeRecord:
    """Serve every model and put every load on it.

    `vllm_arguments` go to every server. Raises InputError for what cannot be served or loaded, and
    ChildError if vLLM fails.
    """
    installed_platform()
    tokens = settings.prompt_tokens + settings.new_tokens
    check_positions(models, tokens, "--prompt-tokens or --new-tokens")
    settings = replace(settings, server_flags=server_flags(models[0], vllm_arguments))
    for model in models:  # all of them before the first, which may be hours
        check_before_serving(model.path, settings.server_flags)
    loads = [
        *(LoadPoint(concurrency, None) for concurrency in settings.concurrencies),
        *(LoadPoint(None, rate) for rate in settings.request_rates),
    ]
    cells = {
        model.name: [
            Cell(model=model.name, load=load, requests=settings.requests, samples=[])
            for load in loads
        ]
        for model in models
    }
    steps = settings.repetitions * len(models) * len(loads)
    advance = step_counter(on_progress, "serving", steps)
    with child(
        CLIENT, bench_serve_environment(), name="vllm bench serve", timeout_seconds=PATIENCE_SECONDS
    ) as ask:
        for repetition, order in enumerate(rounds(models, settings.repetitions)):
            seed = settings.seed + repetition * len(loads)
            for model in order:
                _serve_and_load(model.path, settings, seed, cells[model.name], ask, advance)
    all_cells = [cell for cells_of_model in cells.values() for cell in cells_of_model]
    header = new_record("serve", command, settings, models=record_models(models), cells=all_cells)
    return ServeRecord(**header)


def server_flags(first: BenchModel, vllm_arguments: Sequence[str]) -> tuple[str, ...]:
    """The flags of every server, the user's last, so that they win.

    Prefix caching is off, because random prompts of a small vocabulary repeat. On a CPU the KV
    cache gets one size for all: what serving the first model would give it.
    """
    flags = ["--no-enable-prefix-caching"]
    sized = read_flags(vllm_arguments).sets_cache_size or os.environ.get(CACHE_VARIABLE)
    if installed_platform() == "cpu" and not sized:
        cache_bytes = cpu_cache_bytes(first.path, available_memory_bytes())
        cache_bytes //= read_flags(vllm_arguments).workers
        flags += ["--kv-cache-memory-bytes", str(cache_bytes)]
    return (*flags, *vllm_arguments)


def _serve_and_load(
    directory: Path,
    settings: ServeSettings,
    seed: int,
    cells: Sequence[Cell],
    ask: Ask,
    advance: Callable[[], None],
) -> None:
    """Start a server and add a sample to each cell; load i draws its requests from seed + i."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(
            directory, settings.server_flags, Path(folder) / "server.log", START_SECONDS
        ) as url,
    ):
        for index, cell in enumerate(cells):
            arguments = load_arguments(cell.load, settings, seed + index, url, directory)
            cell.samples.append(convert(ask({"arguments": arguments}), Sample))
            advance()
