"""The record of `bench memory`."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from grasp_deploy.bench.memory.settings import MemorySettings
from grasp_deploy.bench.prediction import relative_error
from grasp_deploy.bench.record import BenchCell, BenchRecord, Count, PositiveCount


@dataclass(frozen=True)
class RecordSettings(MemorySettings):
    """The settings, and whether the weights were random."""

    random_weights: bool = False


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

    @property
    def error(self) -> float:
        """The larger error of weights and KV cache against their predictions."""
        measured, predicted = self.measured, self.predicted
        weights = relative_error(measured.weight_bytes, predicted.weight_bytes)
        return max(weights, relative_error(measured.kv_bytes, predicted.kv_bytes), key=abs)

    @property
    def peak_error(self) -> float:
        """Error of the peak."""
        return relative_error(self.measured.peak_bytes, self.predicted.peak_bytes)


class MemoryRecord(BenchRecord[Cell], kw_only=True):
    """All models at all prompt lengths."""

    settings: RecordSettings
