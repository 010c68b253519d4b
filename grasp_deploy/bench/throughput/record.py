"""The record of `bench throughput`."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from grasp_deploy.bench.record import (
    Amount,
    BenchCell,
    BenchRecord,
    Positive,
    PositiveCount,
    check_repetitions,
)
from grasp_deploy.bench.throughput.settings import ThroughputSettings

QUANTITIES = {  # rates in tokens per second, and what sentences call them
    "throughput": "throughput",
    "prefill": "prefill speed",
    "decode": "decode speed",
}


@dataclass(frozen=True)
class RecordSettings(ThroughputSettings):
    """The settings, and what follows from the models and the bench itself."""

    random_weights: bool = False
    prefix_caching: bool = False

    @property
    def title(self) -> str:
        """The engine and the lengths, for titles."""
        tokens = f"{self.prompt_tokens:,} prompt and {self.new_tokens:,} new tokens"
        return f"{self.engine}, {tokens}"


class Sample(Struct, frozen=True):
    """One batch: seconds until its last token; TTFT and TPOT as means over its requests."""

    seconds: Positive
    ttft_seconds: Positive
    tpot_seconds: Amount | None  # None: there was but one new token
    joules: Amount | None = None  # None: no GPU counts them


class Cell(BenchCell, kw_only=True, omit_defaults=True):
    """One model at one batch size; `refused` is the reason for a lack of samples."""

    engine: str
    batch: PositiveCount
    prompt_tokens: PositiveCount
    new_tokens: PositiveCount
    samples: list[Sample]
    refused: str | None = None

    @property
    def point(self) -> int:
        return self.batch

    def rates(self, quantity: str) -> list[float]:
        """Tokens per second of each repetition; empty where there was nothing to decode.

        Throughput counts output tokens over all of the time, prefill and decode those of the phase
        over its own time.
        """
        if quantity == "throughput":
            return [self.batch * self.new_tokens / s.seconds for s in self.samples]
        if quantity == "prefill":
            return [self.batch * self.prompt_tokens / s.ttft_seconds for s in self.samples]
        times = [s.tpot_seconds for s in self.samples]
        return [self.batch / time for time in times if time] if all(times) else []


class ThroughputRecord(BenchRecord[Cell], kw_only=True):
    """All models at all batch sizes; repetition i of every model ran side by side."""

    settings: RecordSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        check_repetitions((cell.batch, len(cell.samples)) for cell in self.cells)
        if len({(c.engine, c.prompt_tokens, c.new_tokens) for c in self.cells}) > 1:
            raise ValueError("its cells differ in engine, prompt_tokens or new_tokens")
