"""`bench serve`: load on the live server, with vLLM's own load generator.

This bench adds the pairing: every model gets the same requests, in the same order of loads, from a
server with the same flags, started for it alone. Each repetition starts all servers again, in the
opposite order.
"""

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, convert

from grasp_deploy.bench.record import (
    Amount,
    BenchCell,
    BenchRecord,
    Count,
    OnRecord,
    Positive,
    PositiveCount,
)
from grasp_deploy.bench.serve_child import METRICS, PERCENTILES
from grasp_deploy.bench.throughput import rounds
from grasp_deploy.checkpoint.limits import installed_platform, served_shape
from grasp_deploy.config.option import (
    BENCH_SEED_HELP,
    LARGEST_NUMBER,
    REPETITIONS_HELP,
    Seed,
    option,
)
from grasp_deploy.config.option import Count as CountOption
from grasp_deploy.engine.child import child
from grasp_deploy.engine.flags import FORMAT, read_flags
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, check_positions
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter

CHILD = "grasp_deploy.bench.serve_child"
CONCURRENCIES = (1, 8, 32)
PATIENCE_SECONDS = 12 * 3600.0  # 500 long requests, one after the other, on a CPU
START_SECONDS = 1800.0
RateOption = Annotated[float, Meta(gt=0, le=LARGEST_NUMBER)]
Limit = Annotated[float, Meta(ge=0, le=LARGEST_NUMBER)]


@dataclass(frozen=True)
class ServeSettings:
    """The requests, and a load for each concurrency and rate; by default `CONCURRENCIES`."""

    concurrencies: tuple[CountOption, ...] = option(
        "Requests at once, one load for each number. Default: 1,8,32.", (), flag="--concurrency"
    )
    request_rates: tuple[RateOption, ...] = option(
        "Instead of --concurrency: requests per second, such as 0.5,2,8.", (), flag="--request-rate"
    )
    requests: CountOption = option("Requests of each load.", 500)
    prompt_tokens: CountOption = option("Tokens of each prompt.", 512)
    new_tokens: CountOption = option("Tokens of each answer.", 128)
    slo_ttft_ms: Limit | None = option("Longest time to the first token of a good request.", None)
    slo_tpot_ms: Limit | None = option("Longest time per further token of a good request.", None)
    slo_e2e_ms: Limit | None = option("Longest time to the end of a good request.", None)
    repetitions: CountOption = option(REPETITIONS_HELP, 1)
    seed: Seed = option(BENCH_SEED_HELP, 0)
    server_flags: tuple[str, ...] = ()  # of every server; filled in for the record

    def __post_init__(self) -> None:
        if not self.concurrencies and not self.request_rates:
            object.__setattr__(self, "concurrencies", CONCURRENCIES)

    @property
    def slo_ms(self) -> dict[str, float]:
        """The limits that are given, by vLLM's names."""
        limits = {"ttft": self.slo_ttft_ms, "tpot": self.slo_tpot_ms, "e2el": self.slo_e2e_ms}
        return {name: ms for name, ms in limits.items() if ms is not None}


class Percentiles(Struct, frozen=True):
    """Seconds over the requests of one load."""

    mean: Amount
    p50: Amount
    p90: Amount
    p99: Amount


class Sample(Struct, frozen=True, omit_defaults=True):
    """One load, as vLLM's load generator saw it."""

    failed: Count
    output_tokens_per_second: Amount
    ttft_seconds: Percentiles
    tpot_seconds: Percentiles
    e2e_seconds: Percentiles
    goodput_requests_per_second: Amount | None
    errors: list[str] = []  # the first few distinct messages


class LoadPoint(Struct, frozen=True):
    """Requests at once, or else requests per second."""

    max_concurrency: PositiveCount | None
    request_rate: Positive | None

    @property
    def title(self) -> str:
        """`8 requests at once`, or `0.5 requests per second`."""
        kind = "at once" if self.max_concurrency else "per second"
        return f"{self.size:,g} {'request' if self.size == 1 else 'requests'} {kind}"

    @property
    def size(self) -> float:
        """Requests at once or per second; records have loads of one sort."""
        return self.max_concurrency or self.request_rate or 0


class Cell(BenchCell):
    """One model under one load."""

    load: LoadPoint
    requests: PositiveCount  # of each sample
    samples: Annotated[list[Sample], Meta(min_length=1)]

    @property
    def point(self) -> LoadPoint:
        return self.load

    @property
    def asked(self) -> int:
        """Requests of all samples."""
        return self.requests * len(self.samples)

    @property
    def failed(self) -> int:
        """Failed requests of all samples."""
        return sum(sample.failed for sample in self.samples)

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each sample."""
        return [sample.output_tokens_per_second for sample in self.samples]

    def latency(self, name: str, percentile: str) -> float:
        """Seconds of a percentile of `ttft`, `tpot` or `e2e`: the median of the samples."""
        latencies = (getattr(sample, f"{name}_seconds") for sample in self.samples)
        return statistics.median(getattr(seconds, percentile) for seconds in latencies)


ServeRecord = BenchRecord[ServeSettings, Cell]  # all models under all loads


def bench_serve(
    models: Sequence[BenchModel],
    settings: ServeSettings,
    vllm_arguments: Sequence[str],
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
    on_record: OnRecord = ignore_progress,
) -> ServeRecord:
    """Serve every model and put every load on it.

    `vllm_arguments` go to every server. `on_record` gets the record so far after each model of the
    first repetition, and after each further repetition. Raises InputError for what cannot be served
    or loaded, and ChildError if vLLM fails.
    """
    from grasp_deploy.engine.serve import check_before_serving, free_port, running_server

    most = max(settings.concurrencies, default=1)
    if most > settings.requests:
        raise InputError(
            f"--concurrency {most} is more than the {settings.requests} requests of a load: give "
            f"--requests {most} or more, or a lower --concurrency"
        )
    platform, flags = installed_platform(), read_flags(vllm_arguments)
    if flags.secrets:
        raise InputError(
            "--api-key, --hf-token and --watermark-config would stand in the record: leave them "
            "out; a token may be in the environment, as HF_TOKEN"
        )
    if flags.dtype is None:
        models = [replace(model, shape=served_shape(model.shape, platform)) for model in models]
    tokens = settings.prompt_tokens + settings.new_tokens
    check_positions(models, tokens, "--prompt-tokens + --new-tokens")
    settings = replace(settings, server_flags=server_flags(models[0], vllm_arguments))
    port = ["--port", str(free_port())] if not flags.port else []  # as each server takes one
    for model in models:  # all are checked before the first is served, which may take hours
        check_before_serving(model.path, [*settings.server_flags, *port])
    loads = [LoadPoint(concurrency, None) for concurrency in settings.concurrencies]
    loads += [LoadPoint(None, rate) for rate in settings.request_rates]
    cells = [Cell(model.name, load, settings.requests, []) for model in models for load in loads]
    advance = step_counter(on_progress, "serving", settings.repetitions * len(cells))
    environment, patience = bench_serve_environment(), PATIENCE_SECONDS
    with (
        tempfile.TemporaryDirectory() as folder,
        child(CHILD, environment, name="vllm bench serve", timeout_seconds=patience) as ask,
    ):
        for repetition, order in enumerate(rounds(models, settings.repetitions)):
            for path, name in ((model.path, model.name) for model in order):
                log = Path(folder) / "server.log"
                with running_server(path, settings.server_flags, log, START_SECONDS) as url:
                    own = [cell for cell in cells if cell.model == name]
                    for seed, cell in enumerate(own, settings.seed + repetition * len(loads)):
                        arguments = load_arguments(cell.load, settings, seed, url, path)
                        cell.samples.append(convert(ask({"arguments": arguments}), Sample))
                        advance()
                done = [cell for cell in cells if cell.samples]
                if len({len(cell.samples) for cell in done}) == 1:  # no round is half done
                    record = ServeRecord.made("serve", command, settings, models, done)
                    on_record(record)
    return record


def server_flags(first: BenchModel, vllm_arguments: Sequence[str]) -> tuple[str, ...]:
    """The flags of every server, the user's last, so that they win.

    Prefix caching is off, because random prompts of a small vocabulary repeat. On a CPU the KV
    cache gets one size for all: what serving the first model would give it.
    """
    from grasp_deploy.engine.serve import cache_flags

    sized = cache_flags(first.path, read_flags(vllm_arguments), installed_platform())
    return ("--no-enable-prefix-caching", *sized, *vllm_arguments)


def bench_serve_environment() -> dict[str, str]:
    """The child's environment, in which no proxy is used for servers on this machine."""
    names = "no_proxy", "NO_PROXY"  # the user's may be in either
    stated = dict.fromkeys(filter(None, map(os.environ.get, names)))
    local = ",".join([*stated, "127.0.0.1", "localhost", "::1"])
    return {**os.environ, **dict.fromkeys(names, local)}


def load_arguments(
    load: LoadPoint, settings: ServeSettings, seed: int, url: str, directory: Path
) -> list[str]:
    """Arguments for vLLM's load generator: one load, for the server at `url` of a model's folder.

    Random tokens arrive as fast as the concurrency allows, or at a mean rate (a Poisson process).
    """
    arguments = [
        *("--backend", "vllm", "--base-url", url),
        f"--tokenizer={directory}",  # which may begin with a dash
        *("--tokenizer-mode", FORMAT["tokenizer_mode"]),
        *("--dataset-name", "random", "--num-prompts", str(settings.requests)),
        *("--random-input-len", str(settings.prompt_tokens)),
        *("--random-output-len", str(settings.new_tokens), "--random-range-ratio", "0"),
        *("--ignore-eos", "--temperature", "0", "--seed", str(seed), "--disable-tqdm"),
        *("--percentile-metrics", ",".join(METRICS.values())),
        *("--metric-percentiles", ",".join(map(str, PERCENTILES)), "--save-detailed"),
        *("--num-warmups", str(load.max_concurrency or 1)),
    ]
    if load.max_concurrency is not None:
        arguments += ["--max-concurrency", str(load.max_concurrency)]
    if load.request_rate is not None:
        arguments += ["--request-rate", str(load.request_rate)]
    if settings.slo_ms:
        arguments += ["--goodput", *(f"{name}:{ms:g}" for name, ms in settings.slo_ms.items())]
    return arguments
