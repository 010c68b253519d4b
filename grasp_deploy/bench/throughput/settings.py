"""The options of `bench throughput`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThroughputSettings:
    """What is measured, and how; the same for all models."""

    engine: str = "vllm"
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    prompt_tokens: int = 2048
    new_tokens: int = 256
    repetitions: int = 3
    kv_memory_bytes: int | None = None  # of each model; None: the largest batch of the first one
    device: str = "auto"
    dtype: str = "auto"
    enforce_eager: bool = False
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of one sequence at its end."""
        return self.prompt_tokens + self.new_tokens
