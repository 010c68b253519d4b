"""The options of `bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServeSettings:
    """The loads, one for each concurrency and for each rate, and what they are made of."""

    concurrencies: tuple[int, ...] = (1, 8, 32)
    request_rates: tuple[float, ...] = ()  # requests per second
    requests: int = 500
    prompt_tokens: int = 512
    new_tokens: int = 128
    slo_ms: Mapping[str, float] = field(default_factory=dict)  # of ttft, tpot, e2el
    repetitions: int = 1
    seed: int = 0
