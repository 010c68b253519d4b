"""The record of `bench kv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from grasp_deploy.bench.kv.settings import KvSettings
from grasp_deploy.bench.record import BenchRecord, PositiveCount
from grasp_deploy.engine.capacity import KvCapacity


@dataclass(frozen=True)
class RecordSettings(KvSettings):
    """The settings, and what follows from vLLM's platform and the models."""

    block_tokens: int = 16
    random_weights: bool = False


class Cell(Struct):
    """One model with the KV cache that its weights leave of the memory."""

    model: str
    memory_bytes: PositiveCount  # of the cache alone
    context_tokens: PositiveCount
    kv_bytes_per_token: PositiveCount
    layer_kv_bytes_per_token: Annotated[list[PositiveCount], Meta(min_length=1)]
    predicted: KvCapacity
    measured: KvCapacity | None  # None: no vLLM was asked

    @property
    def held(self) -> KvCapacity:
        """What fits: measured, or else predicted."""
        return self.measured or self.predicted


class KvRecord(BenchRecord, kw_only=True):
    """The KV cache of every model, one cell each."""

    settings: RecordSettings
    cells: Annotated[list[Cell], Meta(min_length=1)]

    def __post_init__(self) -> None:
        self.check_models(cell.model for cell in self.cells)
        if [cell.model for cell in self.cells] != [model.name for model in self.models]:
            raise ValueError("its cells are not one for each of its models, in their order")

    @property
    def dense(self) -> Cell:
        """The first model's cell."""
        return self.cells[0]
