"""The flat axis: every prunable unit of every layer, one after the other.

    layer 0                       layer 1
    FFN channels   KV groups      FFN channels   KV groups     ...
    0 1 2 ... F-1  F ... F+K-1    ...                                N units in all

Scores, costs, masks and scales are `(N,)` tensors on this axis. The units of one kind in one layer
are a *segment*: segment `2i` holds layer i's FFN channels, segment `2i + 1` its KV groups. Where a
layer has experts, those stand in the place of its FFN channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class UnitTable:
    """The FFN channels and KV groups of each layer, and their places on the flat axis."""

    segment_sizes: tuple[int, ...]  # (2L,) number of units in each segment
    experts_per_token: int = 0  # so many experts each layer keeps; 0: FFN channels

    @classmethod
    def of_layers(cls, layers: Sequence[tuple[int, int]], experts_per_token: int = 0) -> Self:
        """From `(FFN channels or experts, KV groups)` pairs, one a layer."""
        return cls(tuple(size for pair in layers for size in pair), experts_per_token)

    @property
    def kinds(self) -> tuple[str, str]:
        """The units of a layer's two segments, in words."""
        return "experts" if self.experts_per_token else "FFN channels", "KV groups"

    @property
    def ffn_channels(self) -> tuple[int, ...]:
        """`(L,)` F of each layer."""
        return self.segment_sizes[0::2]

    @property
    def kv_groups(self) -> tuple[int, ...]:
        """`(L,)` K of each layer."""
        return self.segment_sizes[1::2]

    @property
    def layers(self) -> int:
        return len(self.segment_sizes) // 2

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """`(2L + 1,)` place of each segment's first unit, and `N`."""
        return (0, *accumulate(self.segment_sizes))

    @property
    def size(self) -> int:
        """`N`."""
        return self.starts[-1]

    def ffn(self, layer: int) -> slice:
        """The places of a layer's FFN channels."""
        return slice(*self.starts[2 * layer : 2 * layer + 2])

    def kv(self, layer: int) -> slice:
        """The places of a layer's KV groups."""
        return slice(*self.starts[2 * layer + 1 : 2 * layer + 3])

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
        per_segment = [v for pair in zip(ffn_values, kv_values, strict=True) for v in pair]
        return torch.tensor(per_segment, dtype=torch.float64)[self.segment_of_unit]

    def kept_per_layer(self, mask: Tensor) -> list[tuple[int, int]]:
        """`(FFN channels, KV groups)` that a `(N,)` mask keeps, one pair a layer."""
        counts = [int(part.sum()) for part in mask.cpu().split(self.segment_sizes)]
        return list(zip(counts[0::2], counts[1::2], strict=True))

    def kept_shares(self, mask: Tensor) -> tuple[float, float]:
        """Shares of all FFN channels and of all KV groups that a `(N,)` mask keeps."""
        ffn, kv = zip(*self.kept_per_layer(mask), strict=True)
        return sum(ffn) / sum(self.ffn_channels), sum(kv) / sum(self.kv_groups)
