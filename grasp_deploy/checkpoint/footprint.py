"""Footprint of a model, predicted from its shape: weights, KV cache, shapes of layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from grasp_deploy.checkpoint.format.shapes import LayerShape, ModelShape, Size, dense_shape
from grasp_deploy.checkpoint.limits import (
    check_tensor_parallel,
    pipeline_stages,
    tensor_parallel_sizes,
)
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.errors import InputError
from grasp_deploy.stats.wording import listed

OF_SHAPE = (
    *("pruned", "dtype", "hidden_size", "vocab_size", "tied_embeddings", "head_dim"),
    *("parameters", "weight_bytes", "quantization"),
)
Total = Annotated[int, Meta(ge=1, le=2**62)]


class Footprint(Struct, frozen=True, omit_defaults=True):
    """Sizes that follow from a model's shape; the last two only if a memory size is given.

    `weight_bytes` of a quantised model are those of its files, or of plain weights where only its
    config.json was read.

    `cached_tokens_that_fit` is what the memory holds beside the weights, before activations and
    the server's own needs.
    """

    pruned: bool
    dtype: str
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
    memory_bytes: int | None = None
    cached_tokens_that_fit: int | None = None

    def __post_init__(self) -> None:
        held = self.parameters
        plain = self.quantization is None  # else eight weights may share four bytes
        if self.vocab_size * self.hidden_size >= held or (plain and held > self.weight_bytes):
            raise ValueError("its embedding, parameters and weight_bytes do not fit together")

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON has them, without those that were not asked for."""
        return to_builtins(self)


def footprint(
    shape: ModelShape, memory_bytes: int | None = None, kv_dtype_bytes: int | None = None
) -> Footprint:
    """The footprint as served; `kv_dtype_bytes` is a cached value's width, else a weight's."""
    kv_bytes_per_token = shape.kv_bytes_per_token(kv_dtype_bytes)
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
    pipeline_parallel: int | None = None,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """The predicted footprint of a model, and of the dense model that it came from."""
    from grasp_deploy.checkpoint.read.validate import config_and_shape  # help needs no safetensors

    config, shape = config_and_shape(resolve_config(name, revision))
    record = footprint(shape, memory_bytes).as_dict()
    if shape.pruned:
        dense = dense_shape(config)
        record["dense"] = footprint(dense, memory_bytes).as_dict()
        record["ratios"] = compare(dense, shape)
    for name, size, check in (
        ("tensor_parallel", tensor_parallel, _divided),
        ("pipeline_parallel", pipeline_parallel, _staged),
    ):
        if size is not None:
            record[name] = {"size": size, **_judged(check, shape, size)}
    return record


def _judged(
    check: Callable[[ModelShape, int], str], shape: ModelShape, size: int
) -> dict[str, Any]:
    try:
        return {"fits": True, "detail": check(shape, size)}
    except InputError as error:
        return {"fits": False, "detail": str(error)}


def _divided(shape: ModelShape, size: int) -> str:
    check_tensor_parallel(shape, size)
    return f"every layer divides by {size}"


def _staged(shape: ModelShape, size: int) -> str:
    """The stages that vLLM makes, and how uneven layers of a pruned model make them."""
    counts = pipeline_stages(shape, size)
    layers = [shape.layer_parameters(index) for index in range(len(shape.layers))]
    ends = list(accumulate(counts))
    stages = [sum(layers[end - n : end]) for n, end in zip(counts, ends, strict=True)]
    return (
        f"stages of {listed(counts)} layers; the largest holds {max(stages) / sum(stages):.0%} of "
        "the layers' weights"
    )
