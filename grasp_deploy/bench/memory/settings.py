"""The options of `bench memory`."""

from __future__ import annotations

from dataclasses import dataclass

from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    REPETITIONS_HELP,
    Count,
    Seed,
    option,
)


@dataclass(frozen=True)
class MemorySettings:
    """The prefills to measure: `batch` prompts at each length."""

    prompt_tokens: tuple[Count, ...] = option(
        "Tokens of a prompt, one measurement for each length.", (256, 512, 1024, 2048)
    )
    batch: Count = option("Prompts in a prefill.", 4)
    repetitions: Count = option(REPETITIONS_HELP, 3)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
