"""The options of `bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from grasp_deploy.config.option import (
    BENCH_SEED_HELP,
    LARGEST_NUMBER,
    REPETITIONS_HELP,
    Count,
    Seed,
    option,
)

CONCURRENCIES = (1, 8, 32)
Rate = Annotated[float, Meta(gt=0, le=LARGEST_NUMBER)]


@dataclass(frozen=True)
class ServeSettings:
    """The requests, and a load for each concurrency and rate; by default `CONCURRENCIES`."""

    concurrencies: tuple[Count, ...] = option(
        "Requests at once, one load for each number. Default: 1,8,32.", (), flag="--concurrency"
    )
    request_rates: tuple[Rate, ...] = option(
        "Instead of --concurrency: requests per second, such as 0.5,2,8.", (), flag="--request-rate"
    )
    requests: Count = option("Requests of each load.", 500)
    prompt_tokens: Count = option("Tokens of each prompt.", 512)
    new_tokens: Count = option("Tokens of each answer.", 128)
    slo_ms: Mapping[str, float] = field(default_factory=dict)  # of ttft, tpot, e2el
    repetitions: Count = option(REPETITIONS_HELP, 1)
    seed: Seed = option(BENCH_SEED_HELP, 0)

    def __post_init__(self) -> None:
        if not self.concurrencies and not self.request_rates:
            object.__setattr__(self, "concurrencies", CONCURRENCIES)
