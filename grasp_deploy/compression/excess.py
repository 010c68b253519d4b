"""The loss of a plan above the dense model's on held-out sequences, and a bound on it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.stats.clustered import stratified_error


def with_excess(plan: Plan, frozen: FrozenModel, dense_losses: list[float]) -> Plan:
    """The plan with its loss above the dense model's, and the standard error of that.

    `dense_losses` are those of each held-out sequence; the plan stays as it is without any.
    """
    if not dense_losses:
        return plan
    gates = (plan.mask * plan.scales).to(frozen.run.device)
    norms = None if plan.norm_scales is None else plan.norm_scales.to(frozen.run.device)
    losses = frozen.heldout_losses(gates, norms)
    nats = fmean(losses) - fmean(dense_losses)
    error = stratified_error(dense_losses, losses, frozen.run.heldout_sources)
    return replace(plan, provenance={**plan.provenance, "excess": nats, "excess_error": error})


def is_beyond(plan: Plan, bound_nats: float) -> bool:
    """True if the excess and its standard error together are over the bound.

    A gain counts as no loss: what few sequences gain by chance leaves no more room.
    """
    excess, error = (plan.provenance[name] for name in ("excess", "excess_error"))
    return bool(max(excess, 0.0) + error > bound_nats)


def refuse_beyond(plan: Plan, config: CompressConfig, workspace: Workspace) -> None:
    """InputError for a plan beyond the bound beside its budget; its stages are dropped."""
    bound = config.max_loss
    if bound is None or not is_beyond(plan, bound):
        return
    workspace.drop()
    excess, error = (plan.provenance[name] for name in ("excess", "excess_error"))
    raise InputError(
        f"this budget costs {excess:+.4f} ± {error:.4f} nats per token on held-out text, over "
        f"the bound of {bound:.4g}: nothing is written; allow more, or ask for a larger model"
    )


def check_measurable(run: PreparedRun) -> None:
    """InputError for a bound on the loss without the two held-out sequences that it needs."""
    if run.config.is_bound and len(run.blocks.heldout) < 2:
        raise InputError(
            "a bound on the loss is measured on two held-out sequences at least: give more text, "
            "more --calibration-sequences, or --keep"
        )
