"""The options of `table`: engine, batches, contexts and the shapes that it times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    ENFORCE_EAGER_HELP,
    Count,
    Length,
    Seed,
    option,
)


@dataclass(frozen=True)
class LatencySettings:
    """What is timed and how; what a table shares with the measurement of a result."""

    engine: Literal["vllm", "transformers"] = option(
        "vllm; or transformers, for machines without vLLM.", "vllm"
    )
    batches: tuple[Count, ...] = option(
        "Sequences at a time, a table for each number.", (1, 8), flag="--batch"
    )
    contexts: tuple[Length, ...] = option(
        "Tokens of a sequence at its end: a prompt and the new tokens. A table for each number.",
        (512,),
        flag="--context",
    )
    new_tokens: Length = option("Tokens generated at the end of each sequence.", 64)
    tile: Count = option("FFN channels that widths are a multiple of.", 64)
    steps: Length = option("Even steps from nothing to the dense width, and of KV groups.", 8)
    repetitions: Length = option("Measurements of each point; one alone shows no noise.", 5)
    side_by_side: Length = option(
        "Models in memory at a time, the dense one among them; more save time.", 3
    )
    enforce_eager: bool = option(ENFORCE_EAGER_HELP, False)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(BENCH_DTYPE_HELP, "auto")
    seed: Seed = option(BENCH_SEED_HELP, 0)
