"""The options and the record of `bench kv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from grasp_deploy.bench.record import BenchCell, BenchRecord, PositiveCount
from grasp_deploy.config.option import BENCH_DTYPE_HELP, BENCH_SEED_HELP, Count, Seed, option
from grasp_deploy.engine.offline import KvCapacity
from grasp_deploy.files.sizes import parse_bytes


@dataclass(frozen=True)
class KvSettings:
    """A memory for weights and KV cache together, and the tokens of a full sequence."""

    memory_bytes: int = option(
        "Memory for weights and KV cache together, such as 16GiB. Default: 20GiB.",
        20 * 2**30,
        flag="--memory",
        parse=parse_bytes,
    )
    context_tokens: Count | None = option(
        "Tokens of a full sequence. Default: 2048, or the models' limit if lower.",
        None,
        flag="--context",
    )
    predict_only: bool = option("Predict without starting vLLM.", False)
    dtype: str = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
    block_tokens: int = 16  # this and the next: filled in for the record
    random_weights: bool = False


class Cell(BenchCell):
    """One model with the KV cache that its weights leave of the memory."""

    memory_bytes: PositiveCount  # of the cache alone
    context_tokens: PositiveCount
    kv_bytes_per_token: PositiveCount
    layer_kv_bytes_per_token: Annotated[list[PositiveCount], Meta(min_length=1)]
    predicted: KvCapacity
    measured: KvCapacity | None  # None: no vLLM was asked

    @property
    def held(self) -> KvCapacity:
        """The capacity: measured, or else predicted."""
        return self.measured or self.predicted


class KvRecord(BenchRecord[Cell], kw_only=True):
    """The KV cache of every model, one cell each."""

    settings: KvSettings
