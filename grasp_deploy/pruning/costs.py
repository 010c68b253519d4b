"""What one unit costs: parameters, or bytes of a cached token.

Section 3.2 of the paper counts parameters with an FFN channel as the unit of account, which makes
a KV group cost `(2G + 2)·D / 3`. Here the same is counted in plain parameters: an FFN channel is
`3·d` weights, a KV group `(2G + 2)·D·d`. Biases count where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Widths:
    """The sizes of a model that decide its units' costs."""

    hidden_size: int  # d
    head_dim: int  # D
    query_heads_per_group: int  # G
    qkv_bias: bool
    ffn_parameters: int  # that go with one FFN channel, or expert
    bytes_per_parameter: int
    bytes_per_kv_value: int
    output_gate: bool = False  # of each query head, in rows of q_proj

    @property
    def kv_parameters(self) -> int:
        """Parameters that go with one KV group: rows of q, k and v, columns of o."""
        biased_heads = (1 + self.output_gate) * self.query_heads_per_group + 2
        heads = self.query_heads_per_group + biased_heads
        return self.head_dim * (heads * self.hidden_size + biased_heads * self.qkv_bias)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one cached token that go with one KV group: its key and its value."""
        return 2 * self.head_dim * self.bytes_per_kv_value
