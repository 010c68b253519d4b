"""Load on the live server, of models one after the other, with vLLM's own load generator.

Ours is the pairing: every model gets the same requests, in the same order of loads, from a server
with the same flags, started for it alone. Each repetition starts all servers again, in the
opposite order.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from grasp_deploy.bench.serve.settings import ServeSettings
from grasp_deploy.bench.serve.vllm_bench import (
    Load,
    bench_serve_environment,
    bench_serve_request,
)
from grasp_deploy.bench.throughput.engines import check_lengths
from grasp_deploy.bench.throughput.run import rounds
from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.engine.flags import read_flags
from grasp_deploy.engine.serve import (
    available_memory_bytes,
    check_before_serving,
    cpu_cache_bytes,
    running_server,
)
from grasp_deploy.engine.vllm_process import installed_platform
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record

CLIENT = "grasp_deploy.bench.serve.vllm_bench"
PATIENCE_SECONDS = 12 * 3600.0  # 500 long requests, one after the other, on a CPU
START_SECONDS = 1800.0


def loads_of(settings: ServeSettings, repetition: int) -> list[Load]:
    """The loads of a repetition, each with requests of its own."""
    points: list[tuple[int | None, float | None]] = [
        *((concurrency, None) for concurrency in settings.concurrencies),
        *((None, rate) for rate in settings.request_rates),
    ]
    seed = settings.seed + repetition * len(points)
    return [
        Load(
            max_concurrency=concurrency,
            request_rate=rate,
            requests=settings.requests,
            prompt_tokens=settings.prompt_tokens,
            new_tokens=settings.new_tokens,
            slo_ms=settings.slo_ms,
            seed=seed + index,
        )
        for index, (concurrency, rate) in enumerate(points)
    ]


def bench_serve(
    models: Sequence[BenchModel],
    settings: ServeSettings,
    vllm_arguments: Sequence[str],
    command: Sequence[str],
    on_progress: OnProgress = lambda row: None,
) -> dict[str, Any]:
    """Serve every model and put every load on it; gives a record of kind "serve".

    `models` are folders with weights and a tokenizer, first the one that the others are compared
    with; `vllm_arguments` go to every server. `on_progress` hears rows of progress with `stage`, `step`
    and `steps`.

    Raises InputError for what cannot be served or loaded, and ChildError if vLLM fails.
    """
    installed_platform()
    check_lengths(models, settings.prompt_tokens, settings.new_tokens)
    flags = server_flags(models[0], vllm_arguments)
    for model in models:  # all of them before the first, which may be hours
        check_before_serving(model.path, flags)
    cells = [[_cell(model, load) for load in loads_of(settings, 0)] for model in models]
    steps = settings.repetitions * len(models) * len(cells[0])
    done = count()

    def ran() -> None:
        on_progress({"stage": "serving", "step": next(done), "steps": steps})

    ran()
    with child(
        CLIENT,
        bench_serve_environment(),
        name="vllm bench serve",
        timeout_seconds=PATIENCE_SECONDS,
    ) as ask:
        for repetition, order in enumerate(rounds(len(models), settings.repetitions)):
            loads = loads_of(settings, repetition)
            for index in order:
                _serve_and_load(models[index].path, flags, loads, cells[index], ask, ran)
    return new_record(
        "serve",
        command,
        _settings_as_dict(settings, flags),
        models=[model.as_dict() for model in models],
        cells=[cell for cells_of_model in cells for cell in cells_of_model],
    )


def server_flags(first: BenchModel, vllm_arguments: Sequence[str]) -> list[str]:
    """The flags of every server, the user's last, so that they win.

    Prefix caching is off, because random prompts of a small vocabulary repeat. On a CPU the KV
    cache gets one size for all: what serving the first model would give it.
    """
    flags = ["--no-enable-prefix-caching"]
    sized = read_flags(vllm_arguments).sets_cache_size or os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    if installed_platform() == "cpu" and not sized:
        cache_bytes = cpu_cache_bytes(read_config(first.path), available_memory_bytes())
        cache_bytes //= read_flags(vllm_arguments).workers
        flags += ["--kv-cache-memory-bytes", str(cache_bytes)]
    return [*flags, *vllm_arguments]


def _serve_and_load(
    directory: Path,
    flags: Sequence[str],
    loads: Sequence[Load],
    cells: Sequence[dict[str, Any]],
    ask: Ask,
    ran: Callable[[], None],
) -> None:
    """Start a server, put the loads on it one by one, add a sample to each one's cell."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(directory, flags, Path(folder) / "server.log", START_SECONDS) as url,
    ):
        for load, cell in zip(loads, cells, strict=True):
            cell["samples"].append(ask(bench_serve_request(load, url, directory)))
            ran()


def _cell(model: BenchModel, load: Load) -> dict[str, Any]:
    return {
        "model": model.name,
        "load": {"max_concurrency": load.max_concurrency, "request_rate": load.request_rate},
        "requests": load.requests,
        "samples": [],
    }


def _settings_as_dict(settings: ServeSettings, flags: Sequence[str]) -> dict[str, Any]:
    noted = {
        "concurrencies": list(settings.concurrencies),
        "request_rates": list(settings.request_rates),
        "slo_ms": dict(settings.slo_ms),
        "server_flags": list(flags),
    }
    return {**asdict(settings), **noted}
