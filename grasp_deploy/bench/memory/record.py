"""The options and the record of `bench memory`."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from grasp_deploy.bench.record import BenchCell, BenchRecord, Count, PositiveCount
from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    REPETITIONS_HELP,
    Seed,
    option,
)
from grasp_deploy.config.option import Count as CountOption


@dataclass(frozen=True)
class MemorySettings:
    """The prefills to measure: `batch` prompts at each length."""

    prompt_tokens: tuple[CountOption, ...] = option(
        "Tokens of a prompt, one measurement for each length.", (256, 512, 1024, 2048)
    )
    batch: CountOption = option("Prompts in a prefill.", 4)
    repetitions: CountOption = option(REPETITIONS_HELP, 3)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
    random_weights: bool = False  # filled in for the record


class Sample(Struct, frozen=True, omit_defaults=True):
    """Bytes of one measured prefill; the last two are known on a GPU only.

    `reserved_bytes` is what PyTorch's allocator holds, `device_bytes` what the whole process does.
    """

    weight_bytes: Count
    kv_bytes: Count
    peak_bytes: PositiveCount  # weights and KV cache included
    reserved_bytes: Count | None = None
    device_bytes: Count | None = None


class Sizes(Sample, frozen=True, kw_only=True, omit_defaults=True):
    """Predicted bytes, or the medians of the samples; other = peak - weights - KV cache."""

    other_bytes: Count


class Cell(BenchCell):
    """One model at one prompt length."""

    prompt_tokens: PositiveCount
    batch: PositiveCount
    predicted: Sizes
    measured: Sizes
    samples: list[Sample]

    @property
    def point(self) -> int:
        return self.prompt_tokens


class MemoryRecord(BenchRecord[Cell], kw_only=True):
    """All models at all prompt lengths."""

    settings: MemorySettings
