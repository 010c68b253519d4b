"""The record that `inspect` prints, with stable keys."""

from __future__ import annotations

from typing import Any

from grasp_deploy.checkpoint.footprint import compare, footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.limits import check_tensor_parallel
from grasp_deploy.checkpoint.read.source import resolve_model
from grasp_deploy.errors import InputError


def inspect_model(
    name: str,
    revision: str | None = None,
    tensor_parallel: int | None = None,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """The footprint of a model from its config.json, and of the dense model that it came from."""
    config = read_config(resolve_model(name, revision, weights=False).directory)
    shape = model_shape(config)
    record = footprint(shape, memory_bytes).as_dict()
    if shape.pruned:
        dense = footprint(dense_shape(config), memory_bytes)
        shares = compare(dense, footprint(shape))
        record["dense"] = dense.as_dict()
        record["ratios"] = {key.removesuffix("_ratio"): value for key, value in shares.items()}
    if tensor_parallel is not None:
        record["tensor_parallel"] = _tensor_parallel(shape, tensor_parallel)
    return record


def _tensor_parallel(shape: ModelShape, size: int) -> dict[str, Any]:
    try:
        check_tensor_parallel(shape, size)
    except InputError as error:
        return {"size": size, "fits": False, "detail": str(error)}
    return {"size": size, "fits": True, "detail": f"every layer divides by {size}"}
