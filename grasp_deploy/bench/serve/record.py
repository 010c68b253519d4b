"""The record of `bench serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from grasp_deploy.bench.record import (
    Amount,
    BenchRecord,
    Count,
    Positive,
    PositiveCount,
    check_repetitions,
)
from grasp_deploy.bench.serve.settings import ServeSettings
from grasp_deploy.stats.wording import counted


@dataclass(frozen=True)
class RecordSettings(ServeSettings):
    """The settings, and the flags that every server was started with."""

    server_flags: tuple[str, ...] = ()


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
    """Requests at once, or requests per second; None: not limited."""

    max_concurrency: PositiveCount | None
    request_rate: Positive | None

    @property
    def title(self) -> str:
        """`8 requests at once`, `4 requests per second`, `all requests at once`."""
        parts = []
        if self.request_rate is not None:
            parts.append(f"{self.request_rate:g} requests per second")
        if self.max_concurrency is not None:
            at_most = "at most " if parts else ""
            parts.append(f"{at_most}{counted(self.max_concurrency, 'request')} at once")
        return ", ".join(parts) or "all requests at once"


class Cell(Struct):
    """One model under one load."""

    model: str
    load: LoadPoint
    requests: PositiveCount  # of each sample
    samples: Annotated[list[Sample], Meta(min_length=1)]

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


class ServeRecord(BenchRecord, kw_only=True):
    """All models under all loads."""

    settings: RecordSettings
    cells: Annotated[list[Cell], Meta(min_length=1)]

    def __post_init__(self) -> None:
        self.check_models(cell.model for cell in self.cells)
        check_repetitions((cell.load, len(cell.samples)) for cell in self.cells)
        for index, cell in enumerate(self.cells):
            if not all(cell.rates) and not cell.failed:
                raise ValueError(
                    f"cells[{index}] has 0 output tokens per second although no request failed"
                )

    def dense_cell(self, cell: Cell) -> Cell | None:
        """The first model's cell under the same load, if it is another one."""
        point = (self.baseline, cell.load)
        dense = next((c for c in self.cells if (c.model, c.load) == point), None)
        return None if dense is cell else dense
