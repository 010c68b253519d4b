"""The options of `bench kv`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KvSettings:
    """A memory for weights and KV cache together, and the tokens of a full sequence."""

    memory_bytes: int
    context_tokens: int | None = None  # None: 2,048, or what the models were made for
    predict_only: bool = False
    dtype: str = "auto"  # recorded only: the models' shapes have it already
    seed: int = 0
