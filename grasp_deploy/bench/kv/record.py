"""The record of `bench kv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from grasp_deploy.bench.kv.settings import KvSettings
from grasp_deploy.bench.record import BenchCell, BenchRecord, PositiveCount
from grasp_deploy.engine.offline import KvCapacity


@dataclass(frozen=True)
class RecordSettings(KvSettings):
    """The settings, and what follows from vLLM's platform and the models."""

    block_tokens: int = 16
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

    settings: RecordSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        if [cell.model for cell in self.cells] != [model.name for model in self.models]:
            raise ValueError("its cells are not one for each of its models, in their order")

    @property
    def dense(self) -> Cell:
        """The first model's cell."""
        return self.cells[0]
