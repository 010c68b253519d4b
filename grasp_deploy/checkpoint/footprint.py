"""Footprint of a model, predicted from its shape, and the memory that a deployment of it takes.

What `vllm serve` does with a GPU: of `memory x utilization` it takes the weights, the activations
of its largest step and what CUDA and its graphs need. The rest is the KV cache, in whole blocks.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from grasp_deploy.checkpoint.format.config_keys import Size
from grasp_deploy.checkpoint.format.layer_kinds import FLOAT32_BYTES, Windows
from grasp_deploy.checkpoint.format.shapes import LayerShape, ModelShape, dense_shape
from grasp_deploy.checkpoint.limits import (
    BLOCK_TOKENS,
    check_tensor_parallel,
    tensor_parallel_sizes,
)
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.errors import InputError

BATCHED_TOKENS = 2048  # the most that vLLM prefills in a step; `--max-num-batched-tokens`
KV_BYTES = {"bf16": 2, "fp8": 1}  # of a cached value
OF_SHAPE = (
    *("pruned", "dtype", "hidden_size", "vocab_size", "tied_embeddings", "head_dim"),
    *("parameters", "weight_bytes", "quantization", "experts_per_token"),
    "state_bytes_per_sequence",
)
Total = Annotated[int, Meta(ge=1, le=2**62)]


class Footprint(Struct, frozen=True, omit_defaults=True):
    """Sizes that follow from a model's shape; the last two only if a memory size is given.

    `weight_bytes` of a quantised model are those of its files, its embeddings in `dtype`, or of
    plain weights where only its config.json was read.

    `cached_tokens_that_fit` is what the memory holds beside the weights, before activations and
    the server's own needs.
    """

    pruned: bool
    dtype: Literal["float32", "bfloat16", "float16"]  # as in DTYPES
    hidden_size: Size
    vocab_size: Size
    tied_embeddings: bool
    head_dim: Size
    parameters: Total
    weight_bytes: Total
    kv_bytes_per_token: Total
    layers: Annotated[list[LayerShape], Meta(min_length=1)]
    distinct_shapes: int
    tensor_parallel_sizes: list[int]
    quantization: str | None = None
    experts_per_token: int = 0
    state_bytes_per_sequence: int = 0
    memory_bytes: int | None = None
    cached_tokens_that_fit: int | None = None

    def __post_init__(self) -> None:
        held = self.parameters
        plain = self.quantization is None  # else eight weights may share four bytes
        if self.vocab_size * self.hidden_size >= held or (plain and held > self.weight_bytes):
            raise ValueError("its embedding, parameters and weight_bytes do not fit together")

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types, without those at their default."""
        return to_builtins(self)


class RecordModel(Struct, frozen=True):
    """A model of a record; its name is the key that cells refer to."""

    name: str
    footprint: Footprint


def footprint(shape: ModelShape, memory_bytes: int | None = None) -> Footprint:
    """The footprint of a shape as served, with cached values as wide as weights."""
    kv_bytes_per_token = shape.kv_bytes_per_token()
    tokens = None
    if memory_bytes is not None:
        tokens = max(0, memory_bytes - shape.weight_bytes) // kv_bytes_per_token
    return Footprint(
        **{name: getattr(shape, name) for name in OF_SHAPE},
        kv_bytes_per_token=kv_bytes_per_token,
        layers=list(shape.layers),
        distinct_shapes=len(set(shape.layers)),
        tensor_parallel_sizes=tensor_parallel_sizes(shape),
        memory_bytes=memory_bytes,
        cached_tokens_that_fit=tokens,
    )


def compare(dense: ModelShape, pruned: ModelShape) -> dict[str, float]:
    """Pruned as a share of dense, for parameters, weight bytes and KV bytes per token."""
    of_pruned, of_dense = footprint(pruned).as_dict(), footprint(dense).as_dict()
    names = ("parameters", "weight_bytes", "kv_bytes_per_token")
    return {name: of_pruned[name] / of_dense[name] for name in names}


def inspect_model(
    name: str,
    revision: str | None = None,
    tensor_parallel: int | None = None,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """The predicted footprint of a model, and of the dense model that it came from."""
    from grasp_deploy.checkpoint.read.validate import config_and_shape  # help needs no safetensors

    config, shape = config_and_shape(resolve_config(name, revision))
    record = footprint(shape, memory_bytes).as_dict()
    if shape.quantization and shape.stored_bytes is None:
        record["as_if_plain"] = True  # no weight file was there to read
    if shape.pruned:
        dense = dense_shape(config)
        record["dense"] = footprint(dense, memory_bytes).as_dict()
        record["ratios"] = compare(dense, shape)
    if tensor_parallel is not None:
        found = {"fits": True, "detail": f"every layer divides by {tensor_parallel}"}
        try:
            check_tensor_parallel(shape, tensor_parallel)
        except InputError as error:
            found = {"fits": False, "detail": str(error)}
        record["tensor_parallel"] = {"size": tensor_parallel, **found}
    return record


@dataclass(frozen=True)
class Load:
    """Sequences that a server holds at a time, each up to a full context."""

    sequences: int
    context_tokens: int
    kv_bytes_per_value: int | None = None  # None: as wide as a weight
    block_tokens: int = BLOCK_TOKENS["cuda"]

    def blocks_each(self, windows: Windows) -> Fraction:
        """Blocks of the KV cache that a sequence takes in a model's layers, on average.

        A layer with a window keeps its tokens and those of steps under way, and a block more, since
        they begin anywhere in one. vLLM makes groups of equally many layers, so those with a window
        may be padded.
        """
        whole = math.ceil(self.context_tokens / self.block_tokens)
        narrow, wide = windows.narrow, windows.wide
        if not narrow:
            return Fraction(whole)
        steps = 1 if self.block_tokens == BLOCK_TOKENS["cpu"] else 2  # GPUs are given the next too
        kept = min(self.context_tokens, windows.tokens - 1 + steps * self.step_tokens)
        group = min(narrow, wide or narrow)
        padded = group * math.ceil(narrow / group)
        within = math.ceil(kept / self.block_tokens) + 1
        return Fraction(padded * within + wide * whole, narrow + wide)

    def cached_tokens(self, windows: Windows) -> int:
        """Tokens of the KV cache: blocks of each sequence, and one that vLLM reserves."""
        return math.ceil((self.sequences * self.blocks_each(windows) + 1) * self.block_tokens)

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
    weights = shape.weight_bytes if weight_bytes is None else weight_bytes
    return Memory(weights, kv_bytes(shape, load), activation_bytes(shape, load), overhead_bytes)


def kv_bytes(shape: ModelShape, load: Load) -> int:
    """Bytes of the KV cache that holds the whole load, with the states of linear attention."""
    states = load.sequences * shape.state_bytes_per_sequence
    tokens = load.cached_tokens(shape.windows)
    return states + tokens * shape.kv_bytes_per_token(load.kv_bytes_per_value)


def activation_bytes(shape: ModelShape, load: Load) -> int:
    """Bytes that vLLM's largest step of `T` tokens makes at its worst moment.

    With `w` bytes a value, alive beside the residual and the normed input `2·d·w` of a token:

    - MLP: gate and up in one tensor, and their product: `3·F·w`, of each expert that is taken;
    - attention: q, k and v in one tensor, and what attention returns: `(2·H + 2·K)·D·w`.

    Or the logits of the last token of each sequence, `V·w`, with two float32 copies in the sampler.
    """
    width, hidden = shape.bytes_per_parameter, 2 * shape.hidden_size
    heads = (2 * (layer.num_attention_heads + layer.num_key_value_heads) for layer in shape.layers)
    attention = max(heads) * shape.head_dim
    mlp = 3 * max(layer.intermediate_size for layer in shape.layers)
    mlp *= max(1, shape.experts_per_token)
    logits = load.sequences * shape.vocab_size * (width + 2 * FLOAT32_BYTES)
    return max(load.step_tokens * (hidden + max(mlp, attention)) * width, logits)
