"""A bound on the loss as the budget: the smallest checkpoint whose held-out text stays within it.

Budgets lie a fixed share of the prunable cost apart, and are halved between the smallest that is
known to hold and the largest that does not. A run starts from the mask of the one that holds.
"""

from __future__ import annotations

from dataclasses import replace

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.compress import compress, compressed
from grasp_deploy.compression.excess import check_measurable, is_beyond
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.ranks import by_lead, is_lead
from grasp_deploy.compression.result import Compressed, finished_plan
from grasp_deploy.compression.resume import METRICS_FILE, STEP, Workspace
from grasp_deploy.compression.run_options import FROM_DENSE, RunOptions, Start
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import refuse_existing


def compress_within(config: CompressConfig, options: RunOptions) -> Compressed:
    """Compress a model as far as `config.bound_nats` allows.

    The checkpoint of each budget lies in `OUTPUT.partial` until the end. A killed run goes on with
    `resume`. Raises InputError if the largest budget breaks the bound, and for any input that
    cannot be used.
    """
    run = prepare(config, options.begun)
    check_measurable(run)
    with Workspace.open(options, run) as workspace:
        plan = by_lead(lambda: finished_plan(options.output, run)) if options.resume else None
        if plan is None:
            by_lead(lambda: refuse_existing(options.output, overwrite=options.overwrite))
            plan = _smallest_within(run, workspace, options)
            if is_lead():
                assert plan.path is not None, "it lies in the workspace"
                export(
                    plan,
                    run.source.directory,
                    options.output,
                    shard_bytes=options.shard_bytes,
                    overwrite=options.overwrite,
                    beside={METRICS_FILE: (plan.path.parent / METRICS_FILE).read_text("utf-8")},
                    on_progress=options.counted("export"),
                )
    return compressed(options.output, plan, run)


def _smallest_within(run: PreparedRun, workspace: Workspace, options: RunOptions) -> Plan:
    """The plan of the smallest budget within the bound, which names the cost of the next one."""
    bound, share = run.config.bound_nats, run.config.bound_step
    assert bound is not None, "the config asks for it"
    keeps = [1.0, *(round(1 - step * share, 6) for step in range(1, round(1 / share)))]
    possible = [keep for keep in keeps if keep * run.budget.total_cost >= run.budget.smallest_limit]
    holds, breaks, start = 0, len(possible), FROM_DENSE  # places in the list
    held: Plan | None = None
    beyond: Plan | None = None
    while breaks - holds > 1:
        place = (holds + breaks) // 2
        folder = workspace.directory / f"{STEP}{possible[place]}"
        member = replace(run.config, keep=possible[place])
        made = compress(member, options.into(folder, resume=True, overwrite=False), start)
        if is_beyond(made.plan, bound):
            breaks, beyond = place, made.plan
        else:
            holds, held = place, replace(made.plan, path=folder / PLAN_FILE)
        start = Start(None if held is None else held.mask, made.text or start.text)
    if held is None:
        assert beyond is not None, "one budget is possible"
        workspace.drop()
        cost = _cost_of(beyond)
        raise InputError(
            f"even the largest budget below the dense model, to keep {cost['keep']:g}, costs "
            f"{cost['excess']:+.4f} ± "
            f"{cost['excess_error']:.4f} nats per token on held-out text, over the bound of "
            f"{bound:.4g}: allow more, measure better with more --calibration-sequences, or take "
            "smaller steps with --set bound-step=0.01"
        )
    record = {"nats": bound, **_cost_of(held), "next": beyond and _cost_of(beyond)}
    made_by = {"config": run.config.as_dict(), "inputs": run.inputs, "bound": record}
    return replace(held, provenance={**held.provenance, **made_by})


def _cost_of(plan: Plan) -> dict[str, float]:
    """Share of the prunable cost that a plan may keep, and what it costs in nats per token."""
    names = ("excess", "excess_error")
    return {"keep": plan.provenance["config"]["keep"]} | {n: plan.provenance[n] for n in names}
