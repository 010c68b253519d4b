"""A bound on the loss as the budget: units go step by step while held-out text stays within it.

A step removes a fixed share of the prunable cost, refits and scales. The bound holds where the mean
excess of the held-out sequences and its standard error together are within it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.write.export import SHARD_BYTES
from grasp_deploy.compression.compress import Learnt, make_checkpoint
from grasp_deploy.compression.excess import is_beyond
from grasp_deploy.compression.family.walk import Walk
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.result import Compressed
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress, ignore_progress


def compress_within(
    config: CompressConfig,
    output: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Compressed:
    """Compress a model as far as `config.bound_nats` allows, into the folder `output`.

    A killed run goes on with `resume`. Raises InputError if the first step breaks the bound, and
    for any input that cannot be used.
    """

    def learn(run: PreparedRun, workspace: Workspace) -> Learnt:
        plan, part = _last_within(run, workspace, on_progress)
        return plan, dict.fromkeys(plan.fitted, part.path("fitted")), part

    return make_checkpoint(config, output, learn, shard_bytes, resume, overwrite, on_progress)


def _last_within(
    run: PreparedRun, workspace: Workspace, on_progress: OnProgress
) -> tuple[Plan, Workspace]:
    """The plan of the last step within the bound, which names the cost of the next; its part."""
    bound = run.config.bound_nats
    assert bound is not None, "the config asks for it"
    walk = Walk(run, workspace, on_progress)
    held: tuple[Plan, Workspace] | None = None
    beyond = None
    for number, step in _steps(run, workspace):
        plan = _step_plan(walk, workspace.part(_name(number)), _name(number), step)
        if is_beyond(plan, bound):
            beyond = _cost_of(plan)
            break
        walk.go_on_from(_name(number), plan)
        held = plan, workspace.part(_name(number))
    if held is None:
        assert beyond is not None, "the first step fits"
        workspace.drop()
        raise InputError(
            f"even the first step, to keep {beyond['keep']:g}, costs {beyond['excess']:+.4f} ± "
            f"{beyond['excess_error']:.4f} nats per token on held-out text, over the bound of "
            f"{bound:.4g}: allow more, measure better with more --calibration-sequences, or take "
            "smaller steps with --set bound-step=0.01"
        )
    plan, part = held
    record = {"nats": bound, **_cost_of(plan), "next": beyond}
    return replace(plan, provenance={**plan.provenance, "bound": record}), part


def _cost_of(plan: Plan) -> dict[str, float]:
    """Share of the prunable cost that a step may keep, and what it costs in nats per token."""
    budget = plan.provenance["budget"]
    excess = {name: plan.provenance[name] for name in ("excess", "excess_error")}
    return {"keep": round(budget["limit"] / budget["total_cost"], 6), **excess}


def _steps(run: PreparedRun, workspace: Workspace) -> Iterator[tuple[int, PreparedRun]]:
    """Number and run of each step down to the smallest budget, from where a killed run was."""
    total, share = run.budget.total_cost, run.config.bound_step
    begun = [number for number in range(1, round(1 / share) + 1) if _is_saved(workspace, number)]
    for number in count(min(begun, default=1)):
        limit = total * (1 - number * share)
        if limit < run.budget.smallest_limit:
            return
        yield number, replace(run, budget=replace(run.budget, limit=limit), turn=number)


def _name(number: int) -> str:
    return f"step-{number}"


def _is_saved(workspace: Workspace, number: int) -> bool:
    return workspace.part(_name(number)).has("plan")


def _step_plan(walk: Walk, part: Workspace, name: str, step: PreparedRun) -> Plan:
    """The plan of a step, learnt unless it was before."""
    if part.has("plan"):
        saved, provenance = part.load("plan")
        vectors: dict[str, Any] = saved
        return Plan(**vectors, provenance=provenance)
    plan, _ = walk.learn(name, step)
    part.save("plan", plan.tensors, plan.provenance)
    return plan
