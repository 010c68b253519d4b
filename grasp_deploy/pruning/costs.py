"""Costs of units: `(N,)` float64 tensors; a budget rounds them so that sums are exact.

Section 3.2 of the paper counts parameters with an FFN channel as the unit of account, which makes
a KV group cost `(2G + 2)·D / 3`. The functions here count the same in plain parameters or bytes:
an FFN channel is `3·d` weights, a KV group `(2G + 2)·D·d`. Biases count where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Widths:
    """The sizes of a model that decide its units' costs."""

    hidden_size: int  # d
    head_dim: int  # D
    query_heads_per_group: int  # G
    qkv_bias: bool
    mlp_bias: bool
    bytes_per_parameter: int
    bytes_per_kv_value: int

    @property
    def ffn_parameters(self) -> int:
        """Parameters that go with one FFN channel: rows of gate and up, a column of down."""
        return 3 * self.hidden_size + 2 * self.mlp_bias

    @property
    def kv_parameters(self) -> int:
        """Parameters that go with one KV group: rows of q, k and v, columns of o."""
        heads = 2 * self.query_heads_per_group + 2
        biased_heads = self.query_heads_per_group + 2
        return self.head_dim * (heads * self.hidden_size + biased_heads * self.qkv_bias)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one cached token that go with one KV group: its key and its value."""
        return 2 * self.head_dim * self.bytes_per_kv_value


def parameters_cost(units: UnitTable, widths: Widths) -> Tensor:
    """`(N,)` parameters."""
    return _uniform(units, widths.ffn_parameters, widths.kv_parameters)


def kv_bytes_cost(units: UnitTable, widths: Widths) -> Tensor:
    """`(N,)` bytes per cached token; FFN channels cost nothing."""
    return _uniform(units, 0, widths.kv_bytes_per_token)


def memory_cost(units: UnitTable, widths: Widths, cached_tokens: int) -> Tensor:
    """`(N,)` bytes that a deployment holding `cached_tokens` in its KV cache spends on a unit."""
    ffn = widths.ffn_parameters * widths.bytes_per_parameter
    kv = widths.kv_parameters * widths.bytes_per_parameter
    return _uniform(units, ffn, kv + widths.kv_bytes_per_token * cached_tokens)


def latency_cost(units: UnitTable, ffn_seconds: float, kv_seconds: float) -> Tensor:
    """`(N,)` nanoseconds: of the seconds of all units of a kind, each has the same share."""
    ffn, kv = ffn_seconds / sum(units.ffn_channels), kv_seconds / sum(units.kv_groups)
    return _uniform(units, 1e9 * ffn, 1e9 * kv)


def _uniform(units: UnitTable, ffn: float, kv: float) -> Tensor:
    return units.spread([ffn] * units.layers, [kv] * units.layers)
