"""Provenance of a plan: enough to make it again, and to recognise a wrong base model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.files.record import versions
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.version import __version__


def provenance_of(
    frozen: FrozenModel, mask: Tensor, losses: dict[str, float | None], fitted: Iterable[str]
) -> dict[str, Any]:
    """A plan's provenance: of the run, its `(N,)` mask, and what its stages recorded."""
    run, records = frozen.run, frozen.records
    units = run.budget.units
    return {
        "model": run.source.name,
        "revision": run.source.revision,
        "weight_hashes": run.weight_hashes,
        "dense_layers": list(zip(units.ffn_channels, units.kv_groups, strict=True)),
        "cost_model": run.config.cost_model,
        "budget": budget_record(run.budget, mask),
        "config": run.config.as_dict(),
        "calibration": run.text.as_dict() | {"heldout_sequences": len(run.blocks.heldout)},
        "inputs": run.inputs,
        "versions": versions(),
        "losses": losses,
        "seconds": frozen.seconds,
        "compensation": records.get("compensation", {}).get("fits", []),
        "fitted": sorted(fitted),
        "swaps": records.get("swaps", {}).get("accepted", []),
    }


def budget_record(budget: Budget, mask: Tensor) -> dict[str, Any]:
    """The part of the budget that a `(N,)` mask spends, in the unit of the costs."""
    kept = budget.cost_of(mask)
    assert kept <= budget.limit, f"the mask costs {kept}, over the budget {budget.limit}"
    return {"limit": budget.limit, "kept_cost": kept, "total_cost": budget.total_cost}


def is_result_of(plan: Plan, run: PreparedRun) -> bool:
    """True if this run would make the plan: same options, seed, files and release."""
    made = plan.provenance
    return (
        made["versions"].get("grasp_deploy") == __version__
        and made["config"] == run.config.as_dict()
        and made.get("inputs") == run.inputs
    )
