"""`bench throughput`: throughput and latency against batch size, models side by side.

Each model has an engine in a child process of its own, and all stay alive. Every point is measured
in rounds, with a turn for every model (A B, B A, A B, ...): drifts of the machine slow all alike.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, TypeVar

from msgspec import Struct, convert, to_builtins

from grasp_deploy.bench.record import (
    Amount,
    BenchCell,
    BenchRecord,
    OnRecord,
    Positive,
    PositiveCount,
    check_room,
)
from grasp_deploy.checkpoint.footprint import Load, kv_bytes
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS, check_vllm_runs, served_shape
from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    ENFORCE_EAGER_HELP,
    REPETITIONS_HELP,
    Count,
    Dtype,
    Seed,
    option,
)
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.engine.vllm_process import vllm_child_environment, vllm_platform
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, check_positions, model_folder
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.sizes import parse_bytes

CHILD = "grasp_deploy.bench.throughput_child"
PATIENCE_SECONDS = 6 * 3600.0  # a large batch on a CPU may take an hour
Engine = Literal["vllm", "transformers"]
T = TypeVar("T")


@dataclass(frozen=True)
class ThroughputSettings:
    """The engine, the batches and their lengths; the same for all models."""

    engine: Engine = option("vllm; or transformers, for machines without vLLM.", "vllm")
    batches: tuple[Count, ...] = option(
        "Requests at a time, one measurement for each number.",
        (1, 2, 4, 8, 16, 32, 64),
        flag="--batch",
    )
    prompt_tokens: Count = option("Tokens of each prompt.", 2048)
    new_tokens: Count = option("Tokens generated for each prompt.", 256)
    repetitions: Count = option(REPETITIONS_HELP, 3)
    kv_memory_bytes: int | None = option(
        "Size of vLLM's KV cache, the same for each model, such as 4GiB. Default: what the largest "
        "batch takes of any model.",
        None,
        flag="--kv-memory",
        parse=parse_bytes,
    )
    enforce_eager: bool = option(ENFORCE_EAGER_HELP, False)
    device: str = option(DEVICE_HELP, "auto")
    dtype: Dtype = option(
        f"{BENCH_DTYPE_HELP[:-1]}, or float32 where vLLM's CPU only imitates bfloat16.", "auto"
    )
    seed: Seed = option(BENCH_SEED_HELP, 0)
    random_weights: bool = False  # filled in for the record

    @property
    def tokens(self) -> int:
        """Tokens of one sequence at its end."""
        return self.prompt_tokens + self.new_tokens

    @property
    def title(self) -> str:
        """The engine and the lengths, for titles."""
        return f"{self.engine}, {self.prompt_tokens:,} prompt and {self.new_tokens:,} new tokens"


class Sample(Struct, frozen=True):
    """One batch: seconds until its last token; TTFT and TPOT as means over its requests."""

    seconds: Positive
    ttft_seconds: Positive
    tpot_seconds: Amount | None  # None: there was but one new token


class Cell(BenchCell, kw_only=True, omit_defaults=True):
    """One model at one batch size; `refused` says why there are no samples."""

    batch: PositiveCount
    prompt_tokens: PositiveCount
    new_tokens: PositiveCount
    samples: list[Sample]
    refused: str | None = None

    @property
    def point(self) -> int:
        return self.batch

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each repetition, over all of its time."""
        return [self.batch * self.new_tokens / sample.seconds for sample in self.samples]

    def seconds(self, name: str) -> list[float]:
        """`ttft` or `tpot` of each repetition; no TPOT where there was but one new token."""
        values = (getattr(sample, f"{name}_seconds") for sample in self.samples)
        return [value for value in values if value]


class ThroughputRecord(BenchRecord[ThroughputSettings, Cell]):
    """All models at all batch sizes; repetition i of every model ran side by side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(cell.samples for cell in self.cells):
            raise ValueError("none of its cells has a sample")


def bench_throughput(
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
    on_record: OnRecord = ignore_progress,
) -> ThroughputRecord:
    """Measure every model at every batch size; after each `on_record` gets the record so far.

    A cell without samples says in `refused` why: that batch did not fit in the GPU's memory. Raises
    InputError for what cannot be measured, and ChildError if an engine fails.
    """
    if settings.engine == "vllm" and settings.dtype == "auto":
        platform = vllm_platform(settings.device, settings.enforce_eager)
        models = [replace(model, shape=served_shape(model.shape, platform)) for model in models]
    settings = checked(models, settings)
    with ExitStack() as stack:
        asks = _start(stack, models, settings, on_progress)
        steps = len(settings.batches) * len(models) * (1 + settings.repetitions)
        advance = step_counter(on_progress, "measuring", steps)
        cells: list[Cell] = []
        for batch in settings.batches:
            cells += _cells_of_batch(batch, models, asks, settings, advance)
            if any(cell.samples for cell in cells):
                record = ThroughputRecord.made("throughput", command, settings, models, cells)
                on_record(record)
    if not any(cell.samples for cell in cells):
        raise InputError(str(cells[0].refused))
    return record


def checked(models: Sequence[BenchModel], settings: ThroughputSettings) -> ThroughputSettings:
    """Check settings and models without an engine, and fill in what was left open.

    Raises InputError for an engine that is not installed, for options of the other engine, and for
    models that cannot be measured with these settings.
    """
    from grasp_deploy.checkpoint.read.loading import resolve_device  # help needs no torch

    check_positions(models, settings.tokens, "--prompt-tokens + --new-tokens")
    settings = replace(settings, random_weights=models[0].random_weights)
    load = Load(max(settings.batches), settings.tokens)
    if settings.engine == "vllm":
        platform = vllm_platform(settings.device, settings.enforce_eager)
        load = replace(load, block_tokens=BLOCK_TOKENS[platform])
        memory = settings.kv_memory_bytes or max(kv_bytes(m.shape, load) for m in models)
        for model in models:
            check_vllm_runs(model.shape, platform)
            least = kv_bytes(model.shape, replace(load, sequences=1))
            if memory < least:
                raise InputError(
                    f"--kv-memory of {memory:,} bytes does not hold one sequence of "
                    f"{settings.tokens} tokens of {model.name}: give at least "
                    f"{ceil(least / 2**20)}MiB"
                )
        settings = replace(settings, device=platform, kv_memory_bytes=memory)
        cache_bytes = len(models) * memory  # all at once; transformers' caches take turns
    elif settings.kv_memory_bytes is not None or settings.enforce_eager:
        raise InputError(
            "--kv-memory and --enforce-eager are options of vLLM: leave them out, or give "
            "--engine vllm"
        )
    else:
        cache_bytes = max(kv_bytes(model.shape, load) for model in models)
    settings = replace(settings, device=str(resolve_device(settings.device)))
    if settings.device == "cpu":  # a GPU says itself when it is full
        check_room(
            cache_bytes + sum(model.shape.weight_bytes for model in models),
            f"{len(models)} models side by side take",
            "take smaller batches or shorter prompts, or compare fewer models at a time",
        )
    return settings


def _start(
    stack: ExitStack,
    models: Sequence[BenchModel],
    settings: ThroughputSettings,
    on_progress: OnProgress,
) -> list[Ask]:
    # An idle child's threads must not spin and slow the next child. By default GNU's OpenMP stops
    # spinning after a few milliseconds, Intel's after 200; vLLM gives its own workers 5.
    environment = vllm_child_environment() if settings.engine == "vllm" else os.environ
    environment = {"KMP_BLOCKTIME": "5", **environment}
    asks, patience = [], PATIENCE_SECONDS
    for model in models:  # all of them at once, because libraries take seconds to import
        name = f"{settings.engine} with {model.name}"
        started = child(CHILD, environment, name=name, timeout_seconds=patience)
        asks.append(stack.enter_context(started))
    advance = step_counter(on_progress, "starting engines", len(models))
    for model, ask in zip(models, asks, strict=True):
        folder, loading = stack.enter_context(model_folder(model)), to_builtins(settings)
        place = {"model": str(folder), "dtype": model.shape.dtype}
        ask({**place, "random_weights": model.random_weights, "settings": loading})
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
    tokens = {"prompt_tokens": settings.prompt_tokens, "new_tokens": settings.new_tokens}
    point: dict[str, Any] = {"batch": batch, **tokens}
    cells = [Cell(model=m.name, samples=[], **point) for m in models]
    children = list(zip(asks, cells, strict=True))
    for number, turns in enumerate([children, *rounds(children, settings.repetitions)]):
        # Other prompts in each round, the same for all models.
        request = {**point, "seed": settings.seed + number}
        for ask, cell in turns:
            try:
                sample = None if cell.refused else convert(ask(request), Sample)
                cell.samples += [sample] if sample and number else []
            except InputError as error:
                cell.samples, cell.refused = [], str(error)
            advance()
    return cells


def rounds(models: Sequence[T], repetitions: int) -> list[list[T]]:
    """The models' turns in each round: in order, and backwards in every other round."""
    return [list(models[::-1] if index % 2 else models) for index in range(repetitions)]
