"""The options and the record of `bench throughput`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from grasp_deploy.bench.record import Amount, BenchCell, BenchRecord, Positive, PositiveCount
from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    ENFORCE_EAGER_HELP,
    REPETITIONS_HELP,
    Count,
    Seed,
    option,
)
from grasp_deploy.files.sizes import parse_bytes

QUANTITIES = {  # rates in tokens per second, and what sentences call them
    "throughput": "throughput",
    "prefill": "prefill speed",
    "decode": "decode speed",
}
Engine = Literal["vllm", "transformers"]


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
        "batch of the first model takes.",
        None,
        flag="--kv-memory",
        parse=parse_bytes,
    )
    enforce_eager: bool = option(ENFORCE_EAGER_HELP, False)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(BENCH_DTYPE_HELP, "auto")
    seed: Seed = option(BENCH_SEED_HELP, 0)
    random_weights: bool = False  # this and the next: filled in for the record
    prefix_caching: bool = False

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

    @property
    def repetitions(self) -> int:
        return len(self.samples)

    def rates(self, quantity: str) -> list[float]:
        """Tokens per second of each repetition; empty where there was nothing to decode.

        Throughput counts output tokens over all of the time, prefill and decode those of the phase
        over its own time.
        """
        tokens, name = {
            "throughput": (self.new_tokens, "seconds"),
            "prefill": (self.prompt_tokens, "ttft_seconds"),
            "decode": (1, "tpot_seconds"),
        }[quantity]
        times = [getattr(sample, name) for sample in self.samples]
        return [self.batch * tokens / time for time in times] if all(times) else []


class ThroughputRecord(BenchRecord[Cell], kw_only=True):
    """All models at all batch sizes; repetition i of every model ran side by side."""

    settings: ThroughputSettings
