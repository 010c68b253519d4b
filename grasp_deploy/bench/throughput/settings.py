"""The options of `bench throughput`."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class ThroughputSettings:
    """The engine, the batches and their lengths; the same for all models."""

    engine: str = option("vllm; or transformers, for machines without vLLM.", "vllm")
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

    @property
    def tokens(self) -> int:
        """Tokens of one sequence at its end."""
        return self.prompt_tokens + self.new_tokens
