"""The flat axis: every prunable unit of every layer, one after the other.

    layer 0                       layer 1
    FFN channels   KV groups      FFN channels   KV groups     ...
    0 1 2 ... F-1  F ... F+K-1    ...                                N units in all

Scores, costs, masks and scales are `(N,)` tensors on this axis. The units of one kind in one layer
are a *segment*: segment `2i` holds layer i's FFN channels, segment `2i + 1` its KV groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class UnitTable:
    """The FFN channels and KV groups of each layer, and their places on the flat axis."""

    ffn_channels: tuple[int, ...]  # (L,) F of each layer
    kv_groups: tuple[int, ...]  # (L,) K of each layer

    @classmethod
    def of_layers(cls, layers: Sequence[tuple[int, int]]) -> UnitTable:
        """From `(FFN channels, KV groups)` pairs, one a layer."""
        return cls(tuple(pair[0] for pair in layers), tuple(pair[1] for pair in layers))

    @property
    def layers(self) -> int:
        return len(self.ffn_channels)

    @cached_property
    def segment_sizes(self) -> tuple[int, ...]:
        """`(2L,)` number of units in each segment."""
        pairs = zip(self.ffn_channels, self.kv_groups, strict=True)
        return tuple(size for pair in pairs for size in pair)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.segment_sizes))

    @property
    def size(self) -> int:
        """`N`."""
        return self._starts[-1]

    def ffn(self, layer: int) -> slice:
        """The places of a layer's FFN channels."""
        return slice(self._starts[2 * layer], self._starts[2 * layer + 1])

    def kv(self, layer: int) -> slice:
        """The places of a layer's KV groups."""
        return slice(self._starts[2 * layer + 1], self._starts[2 * layer + 2])

    @cached_property
    def segment_of_unit(self) -> Tensor:
        """`(N,)` int64: the segment of each unit."""
        return torch.arange(2 * self.layers).repeat_interleave(torch.tensor(self.segment_sizes))

    @cached_property
    def is_kv(self) -> Tensor:
        """`(N,)` bool: True for KV groups, False for FFN channels."""
        return self.segment_of_unit % 2 == 1

    def spread(self, ffn_values: Sequence[float], kv_values: Sequence[float]) -> Tensor:
        """`(N,)` float64 from one value per layer for its FFN channels and one for its groups."""
        pairs = zip(ffn_values, kv_values, strict=True)
        per_segment = torch.tensor([v for pair in pairs for v in pair], dtype=torch.float64)
        return per_segment[self.segment_of_unit]

    def kept_per_layer(self, mask: Tensor) -> list[tuple[int, int]]:
        """`(FFN channels, KV groups)` that a `(N,)` mask keeps, one pair a layer."""
        kept = torch.zeros(2 * self.layers, dtype=torch.int64)
        kept.index_add_(0, self.segment_of_unit, mask.cpu().to(torch.int64))
        counts = kept.tolist()
        return list(zip(counts[0::2], counts[1::2], strict=True))

    def kept_shares(self, mask: Tensor) -> tuple[float, float]:
        """Shares of all FFN channels and of all KV groups that a `(N,)` mask keeps."""
        kept = self.kept_per_layer(mask)
        ffn = sum(pair[0] for pair in kept) / sum(self.ffn_channels)
        return ffn, sum(pair[1] for pair in kept) / sum(self.kv_groups)
