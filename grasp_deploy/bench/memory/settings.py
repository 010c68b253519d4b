"""The options of `bench memory`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySettings:
    """What is measured: prefills of `batch` prompts at each length."""

    prompt_tokens: tuple[int, ...] = (256, 512, 1024, 2048)
    batch: int = 4
    repetitions: int = 3
    device: str = "auto"
    dtype: str = "auto"  # recorded only: the models' shapes have it already
    seed: int = 0
