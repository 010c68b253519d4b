"""The records that `inspect` and `compress` print, with stable keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grasp_deploy.checkpoint.footprint import compare, footprint
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.limits import check_tensor_parallel
from grasp_deploy.checkpoint.read.source import resolve_model
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from grasp_deploy.compression.compress import Compressed


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


def _tensor_parallel(shape: Any, size: int) -> dict[str, Any]:
    try:
        check_tensor_parallel(shape, size)
    except InputError as error:
        return {"size": size, "fits": False, "detail": str(error)}
    return {"size": size, "fits": True, "detail": f"every layer divides by {size}"}


def compression_record(compressed: Compressed) -> dict[str, Any]:
    """What a compression came to: its footprint, its budget, its times and its memory."""
    from grasp_deploy.checkpoint.card.model_card import ratios
    from grasp_deploy.pruning.units import UnitTable

    plan = compressed.plan
    budget, seconds = plan.provenance["budget"], plan.provenance["seconds"]
    calibration = plan.provenance["calibration"]
    ffn_share, kv_share = UnitTable.of_layers(plan.dense_layers).kept_shares(plan.mask)
    return {
        **footprint(compressed.pruned).as_dict(),
        "output": str(compressed.output),
        "cost_model": plan.provenance["cost_model"],
        "kept_cost": budget["kept_cost"],
        "budget": budget["limit"],
        "total_cost": budget["total_cost"],
        "kept_ffn_share": ffn_share,
        "kept_kv_share": kv_share,
        "ratios": ratios(plan, compressed.dense, compressed.pruned),
        "start_seconds": seconds.get("start", 0.0),
        "gate_learning_seconds": seconds["gates"],
        "compensation_seconds": seconds.get("compensation", 0.0),
        "compensated": bool(plan.fitted),
        "scale_seconds": seconds["scales"],
        "peak_memory_bytes": compressed.peak_memory_bytes,
        "heldout_tokens": calibration["heldout_sequences"] * calibration["sequence_length"],
        "heldout_loss_dense": plan.provenance["losses"]["heldout_dense"],
        "heldout_loss_pruned": plan.provenance["losses"]["heldout_pruned"],
        "dense": footprint(compressed.dense).as_dict(),
    }
