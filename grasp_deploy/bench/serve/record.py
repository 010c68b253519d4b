"""The options and the record of `bench serve`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from grasp_deploy.bench.record import (
    Amount,
    BenchCell,
    BenchRecord,
    Count,
    Positive,
    PositiveCount,
)
from grasp_deploy.config.option import (
    BENCH_SEED_HELP,
    LARGEST_NUMBER,
    REPETITIONS_HELP,
    Seed,
    option,
)
from grasp_deploy.config.option import Count as CountOption

CONCURRENCIES = (1, 8, 32)
RateOption = Annotated[float, Meta(gt=0, le=LARGEST_NUMBER)]


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
    slo_ms: Mapping[str, float] = field(default_factory=dict)  # of ttft, tpot, e2el
    repetitions: CountOption = option(REPETITIONS_HELP, 1)
    seed: Seed = option(BENCH_SEED_HELP, 0)
    server_flags: tuple[str, ...] = ()  # of every server; filled in for the record

    def __post_init__(self) -> None:
        if not self.concurrencies and not self.request_rates:
            object.__setattr__(self, "concurrencies", CONCURRENCIES)


class Percentiles(Struct, frozen=True):
    """Seconds over the requests of one load."""

    mean: Amount
    p50: Amount
    p90: Amount
    p99: Amount


class Sample(Struct, frozen=True, omit_defaults=True):
    """One load, as vLLM's load generator saw it."""

    completed: Count
    failed: Count
    seconds: Amount
    requests_per_second: Amount
    output_tokens_per_second: Amount
    output_tokens: Count
    ttft_seconds: Percentiles
    tpot_seconds: Percentiles
    itl_seconds: Percentiles
    e2e_seconds: Percentiles
    goodput_requests_per_second: Amount | None
    errors: list[str] = []  # the first few of different texts


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
    def repetitions(self) -> int:
        return len(self.samples)

    @property
    def failed(self) -> int:
        """Failed requests of all samples."""
        return sum(sample.failed for sample in self.samples)

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each sample."""
        return [sample.output_tokens_per_second for sample in self.samples]

    def latency(self, name: str, percentile: str) -> float:
        """Seconds of a percentile of `ttft`, `tpot`, `itl` or `e2e`: the median of the samples."""
        latencies = (getattr(sample, f"{name}_seconds") for sample in self.samples)
        return statistics.median(getattr(seconds, percentile) for seconds in latencies)


class ServeRecord(BenchRecord[Cell], kw_only=True):
    """All models under all loads."""

    settings: ServeSettings
