"""The record that `compress` prints, with stable keys."""

from __future__ import annotations

from typing import Any

from grasp_deploy.checkpoint.footprint import compare, footprint
from grasp_deploy.compression.compress import Compressed
from grasp_deploy.pruning.units import UnitTable


def compression_record(compressed: Compressed) -> dict[str, Any]:
    """Footprint, budget, times and memory of a finished compression."""
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
        "ratios": {
            "prunable_cost": budget["kept_cost"] / budget["total_cost"],
            **compare(compressed.dense, compressed.pruned),
        },
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
