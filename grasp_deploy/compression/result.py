"""The result of a compression: its plan's provenance, and the record that the command prints."""

import resource
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import torch
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import intact_plan
from grasp_deploy.checkpoint.footprint import compare, footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import Plan, pruned_shape
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.verify_files import Difference, NotProven, check_companions
from grasp_deploy.checkpoint.write.shards import read_tensor
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import by_lead
from grasp_deploy.compression.resume import differing
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.stages import Stages
from grasp_deploy.compression.time_budget import time_budget
from grasp_deploy.config.compress_config import RETIRED, changed_options
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import PLAN_FILE
from grasp_deploy.files.record import versions
from grasp_deploy.files.tensors import digest_of
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.units import UnitTable
from grasp_deploy.stats.clustered import stratified_error
from grasp_deploy.version import __version__

BESIDE = "files beside the weights"


@dataclass(frozen=True)
class Compressed:
    """The result of a compression."""

    output: Path
    plan: Plan
    dense: ModelShape
    pruned: ModelShape
    peak_memory_bytes: int

    @classmethod
    def of(cls, output: Path, plan: Plan, run: PreparedRun) -> Self:
        """The result of a run in a folder."""
        dense, peak = run.base.shape, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if run.device.type == "cuda":  # else of the whole process
            peak = torch.cuda.max_memory_allocated(run.device)
        placed = replace(plan, path=output / PLAN_FILE)  # beside the fitted tensors of an export
        return cls(output, placed, dense, pruned_shape(plan, dense), peak)


def finished_record(compressed: Compressed) -> dict[str, Any]:
    """The record of any run: footprint, budget, peak memory, and what its recovery won."""
    plan = compressed.plan
    budget = plan.provenance["budget"]
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
        "peak_memory_bytes": compressed.peak_memory_bytes,
        "dense": footprint(compressed.dense).as_dict(),
        **_recovery_of(plan),
    }


def compression_record(compressed: Compressed) -> dict[str, Any]:
    """The record of a compression: also seconds, and losses before any recovery."""
    plan = compressed.plan
    calibration, seconds = plan.provenance["calibration"], plan.provenance.get("seconds", {})
    predicted = calibration["sequence_length"] - 1  # tokens of a sequence that its loss counts
    return {
        **finished_record(compressed),
        "own_text_seconds": seconds.get("own-text", 0.0),
        "start_seconds": seconds.get("start", 0.0),
        "gate_learning_seconds": seconds.get("gates", 0.0),
        "compensation_seconds": seconds.get("compensation", 0.0),
        "compensated": bool(plan.fitted),
        "scale_seconds": seconds.get("scales", 0.0),
        "heldout_tokens": calibration.get("heldout_sequences", 0) * predicted,
        "heldout_loss_dense": plan.provenance["losses"]["heldout_dense"],
        "heldout_loss_pruned": plan.provenance["losses"]["heldout_pruned"],
        **{name: plan.provenance[name] for name in ("time", "bound") if name in plan.provenance},
    }


def _recovery_of(plan: Plan) -> dict[str, Any]:
    """Figures of the last recovery, null where it won nothing; nothing where none was asked for."""
    last = plan.provenance.get("healing", [])[-1:]
    figures = (
        *("tokens", "steps", "best_step", "seconds", "heldout_tokens"),
        *("divergence_before", "divergence_after", "loss_dense", "loss_before", "loss_after"),
    )
    if not last:
        return {} if plan.provenance["config"].get("recover") is None else {"recovery": None}
    return {"recovery": {name: last[0][name] for name in figures}}


def excess_of(run: PreparedRun, dense: list[float], pruned: list[float]) -> dict[str, float | None]:
    """The pruned model's loss above the dense one's, and its standard error; empty without bound.

    Both have a loss for each held-out sequence that judges.
    """
    if run.config.max_loss is None:
        return {}
    split = run.split
    sources = [s for s, judges in zip(split.sources, split.judges, strict=True) if judges]
    error = stratified_error(dense, pruned, sources)
    return {"excess": fmean(pruned) - fmean(dense), "excess_error": error}


def beyond(plan: Plan, bound_nats: float) -> str:
    """An objection if the excess and its standard error together are over the bound, else "".

    A gain counts as no loss: what few sequences gain by chance leaves no more room.
    """
    excess, error = (plan.provenance[name] for name in ("excess", "excess_error"))
    if max(excess, 0.0) + error <= bound_nats:
        return ""
    return (
        f"costs {excess:+.4f} ± {error:.4f} nats per token on held-out text; with that error, and "
        f"a gain counted as no loss, it is over the bound of {bound_nats:.4g}"
    )


def provenance_of(
    run: PreparedRun,
    stages: Stages,
    mask: Tensor,
    losses: dict[str, float | None],
    fitted: dict[str, Path],
) -> dict[str, Any]:
    """A plan's provenance: of the run, its `(N,)` mask, and what its stages recorded."""
    dtype = getattr(torch, run.base.shape.dtype)  # that of the checkpoint
    units, time = run.budget.units, time_budget(run.config)
    spent = budget_record(run.budget, mask)
    return {
        "model": run.source.name,
        "revision": run.source.revision,
        "weight_hashes": run.weight_hashes,
        "dense_layers": list(zip(units.ffn_channels, units.kv_groups, strict=True)),
        "cost_model": run.config.cost_model,
        "budget": spent,
        **({} if time is None else {"time": time.record(spent["kept_cost"], spent["total_cost"])}),
        "config": run.config.as_dict(),
        "calibration": {**run.text.as_dict(), "heldout_sequences": int(run.split.judges.sum())},
        "computed_in": run.computed_in,
        "inputs": run.inputs,
        "versions": versions(),
        "losses": losses,
        "seconds": {stage: record["seconds"] for stage, record in stages.records.items()},
        "compensation": stages.records.get("compensation", {}).get("fits", []),
        "fitted": by_lead(
            lambda: {n: digest_of(read_tensor(p, n).to(dtype)) for n, p in sorted(fitted.items())}
        ),
    }


def budget_record(budget: Budget, mask: Tensor) -> dict[str, Any]:
    """The part of the budget that a `(N,)` mask spends, in the unit of the costs."""
    kept = budget.cost_of(mask)
    assert kept <= budget.limit, f"the mask costs {kept}, over the budget {budget.limit}"
    return {"limit": budget.limit, "kept_cost": kept, "total_cost": budget.total_cost}


def finished_plan(options: RunOptions, run: PreparedRun) -> Plan | None:
    """The plan of an output that a resumed run finds complete, else None.

    Options, seed, files and release have to be the same. InputError names those that differ, unless
    the output may be replaced.
    """
    try:
        plan = intact_plan(options.output) if options.resume else None
    except InputError:  # absent, damaged, or of another format
        return None
    if plan is None:
        return None
    made = plan.provenance
    if run.start.checkpoint is not None:  # then the last recovery made it, else one run did all
        made = {**made, **(made["healing"][-1] if made.get("healing") else {})}
    odd = _odd_companion(options.output, plan, run.base)
    before = {"release": plan.release, **made.get("inputs", {}), BESIDE: odd}
    now, config = {"release": __version__, **run.inputs, BESIDE: None}, run.config.as_dict()
    if before == now and RETIRED | made["config"] == RETIRED | config:
        return plan
    if not options.overwrite:
        changed = [*changed_options(made["config"], config), *differing(before, now)]
        raise InputError(
            f"{options.output} was made with other options or files ({', '.join(changed)}): go on "
            "with the same ones, name another --output, or replace it with --overwrite"
        )
    return None


def _odd_companion(output: Path, plan: Plan, base: StoredModel) -> str | None:
    """What stands beside the weights otherwise than an export writes it; None if nothing does."""
    try:
        check_companions(read_stored_model(output), plan, base)
    except (Difference, NotProven) as odd:
        return str(odd)
    return None
