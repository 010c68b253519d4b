"""Memory that a deployment takes, predicted from config.json: weights, cache, activations, server.

What `vllm serve` does with a GPU: of `memory x utilization` it takes the weights, the activations
of its largest step and what CUDA and its graphs need. The rest is the KV cache, in whole blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS

BATCHED_TOKENS = 2048  # that vLLM prefills in a step; `--max-num-batched-tokens`
FLOAT32_BYTES = 4
KV_BYTES = {"bf16": 2, "fp8": 1}  # of a cached value


@dataclass(frozen=True)
class Load:
    """Sequences that a server holds at a time, each up to a full context."""

    sequences: int
    context_tokens: int
    kv_bytes_per_value: int | None = None  # None: as wide as a weight
    block_tokens: int = BLOCK_TOKENS["cuda"]

    @property
    def cached_tokens(self) -> int:
        """Tokens of the KV cache: whole blocks for each sequence, and the one that vLLM keeps."""
        blocks = self.sequences * math.ceil(self.context_tokens / self.block_tokens) + 1
        return blocks * self.block_tokens

    @property
    def step_tokens(self) -> int:
        """Tokens of the server's largest step."""
        return max(BATCHED_TOKENS, self.sequences)


@dataclass(frozen=True)
class Room:
    """What the server may take of a GPU's memory, and what it needs for itself."""

    memory_bytes: int
    utilization: float
    overhead_bytes: int

    @property
    def usable_bytes(self) -> int:
        """The share of the memory that vLLM may take; `0.9` is meant as nine tenths."""
        return int(self.memory_bytes * Fraction(str(self.utilization)))

    def memory_for(self, needed_bytes: float) -> int:
        """The smallest GPU memory with room for so many bytes."""
        return math.ceil(Fraction(math.ceil(needed_bytes)) / Fraction(str(self.utilization)))


@dataclass(frozen=True)
class Memory:
    """The bytes of a deployment, part by part."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    overhead_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes + self.overhead_bytes


def deployment_memory(
    shape: ModelShape, load: Load, overhead_bytes: int, weight_bytes: int | None = None
) -> Memory:
    """The memory of a model under a load; `weight_bytes` replaces those of its plain weights."""
    return Memory(
        weight_bytes=shape.weight_bytes if weight_bytes is None else weight_bytes,
        kv_bytes=kv_bytes(shape, load),
        activation_bytes=activation_bytes(shape, load),
        overhead_bytes=overhead_bytes,
    )


def kv_bytes(shape: ModelShape, load: Load) -> int:
    """Bytes of the KV cache that holds the whole load."""
    return load.cached_tokens * shape.kv_bytes_per_token(load.kv_bytes_per_value)


def activation_bytes(shape: ModelShape, load: Load) -> int:
    """Bytes that vLLM's largest step of `T` tokens makes at its worst moment.

    With `w` bytes a value, alive beside the residual and the normed input `2·d·w` of a token:

    - MLP: gate and up in one tensor, and their product: `3·F·w`;
    - attention: q, k and v in one tensor, and what attention returns: `(2·H + 2·K)·D·w`.

    Or the logits of the last token of each sequence, `V·w`, with two float32 copies in the sampler.
    """
    width, hidden = shape.bytes_per_parameter, 2 * shape.hidden_size
    heads = (2 * (layer.num_attention_heads + layer.num_key_value_heads) for layer in shape.layers)
    attention = max(heads) * shape.head_dim
    mlp = 3 * max(layer.intermediate_size for layer in shape.layers)
    logits = load.sequences * shape.vocab_size * (width + 2 * FLOAT32_BYTES)
    return max(load.step_tokens * (hidden + max(mlp, attention)) * width, logits)
