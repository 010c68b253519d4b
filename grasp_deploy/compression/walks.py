"""Several runs, each from the mask of a larger budget: a family, and a bound on the loss.

What a larger budget has removed never comes back. Budgets tried for a bound are a fixed share of
the prunable cost apart. Bisection finds the smallest that holds the bound.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.ranks import by_lead, is_lead
from grasp_deploy.compression.result import Compressed, beyond, finished_plan
from grasp_deploy.compression.resume import (
    CONFIG_FILE,
    METRICS_FILE,
    START_OVER,
    STEP,
    Workspace,
    partial_of,
    refuse_foreign,
)
from grasp_deploy.compression.run_options import RunOptions, Start, options_of
from grasp_deploy.config.compress_config import CompressConfig, changed_options
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.outputs import refuse_existing
from grasp_deploy.files.progress import counts_of


def compress_family(config: CompressConfig, output: RunOptions | str | Path) -> list[Compressed]:
    """Compress a model to each budget of `config.family`, each into a folder of the output.

    Each appears whole. A killed family goes on with `resume`, and makes no finished member again.
    Raises InputError for any input that cannot be used.
    """
    options = options_of(output)
    if not config.family:
        raise InputError(
            "a family has several budgets: give family=(0.8, 0.6), or use compress for one, and "
            "compress_within for a bound on the loss"
        )
    members = {
        options.output / f"{STEP}{keep}": replace(config, keep=keep) for keep in config.family
    }
    by_lead(lambda: _check_places(members, options))
    # The smallest, since it must be possible.
    run = prepare(replace(config, keep=min(config.family)), options.begun)
    made, was_there = [], options.output.exists()
    try:
        with Workspace.open(options, run) as workspace:
            start = Start(text=run.text, dtype=run.dtype, shared=workspace)
            for folder, member in members.items():
                made.append(compress(member, options.into(folder), start))
                start = replace(start, mask=made[-1].plan.mask)
    finally:
        if is_lead() and not was_there:
            with suppress(OSError):
                options.output.rmdir()  # if nothing is in it
    return made


def _check_places(members: Mapping[Path, CompressConfig], options: RunOptions) -> None:
    """Raise InputError, before any work, if a member may not be replaced or has other options."""
    output = options.output
    if (
        output.name in ("", "..")
        or output.is_symlink()
        or (output.exists() and not output.is_dir())
        or (output / "config.json").exists()  # a model's
    ):
        raise InputError(f"the output {output} is no folder of its own: name one to make")
    for folder, config in members.items():
        for place in (folder, partial_of(folder)):
            if options.overwrite or not (place / CONFIG_FILE).exists():
                continue
            if not options.resume:
                raise InputError(
                    f"{place} exists: go on with --resume, replace it with --overwrite, or name "
                    "another --output"
                )
            stored = read_json(place / CONFIG_FILE, START_OVER)
            if changed := changed_options(stored, config.as_dict()):
                raise InputError(
                    f"{place} was made with other options ({', '.join(changed)}): name another "
                    "--output, or replace it with --overwrite"
                )
        refuse_foreign(partial_of(folder))
        refuse_existing(folder, overwrite=options.overwrite or options.resume)


def compress_within(config: CompressConfig, output: RunOptions | str | Path) -> Compressed:
    """Compress a model as far as `config.max_loss`, its only budget, allows.

    The checkpoint of each budget lies in `OUTPUT.partial` until the end. A killed run goes on with
    `resume`. Raises InputError if the largest budget breaks the bound, and for any input that
    cannot be used.
    """
    options = options_of(output)
    if config.family or not config.walks:
        raise InputError(
            "a bound on the loss alone decides the size here: give max_loss and no budget, or use "
            "compress for one budget, and compress_family for several"
        )
    run = prepare(config, options.begun)
    with Workspace.open(options, run) as workspace:
        plan = by_lead(lambda: finished_plan(options, run))
        if plan is None:
            by_lead(lambda: refuse_existing(options.output, overwrite=options.overwrite))
            plan = _smallest_within(run, workspace, options)
            if is_lead():
                assert plan.path is not None, "it lies in the workspace"
                export(
                    plan,
                    run.source.directory,
                    options.output,
                    overwrite=options.overwrite,
                    beside={METRICS_FILE: (plan.path.parent / METRICS_FILE).read_text("utf-8")},
                    on_progress=counts_of("export", options.on_progress),
                )
    return Compressed.of(options.output, plan, run)


def _smallest_within(run: PreparedRun, workspace: Workspace, options: RunOptions) -> Plan:
    """The plan of the smallest budget within the bound; it also states the cost of the next one."""
    bound, share = run.config.max_loss, run.config.bound_step
    assert bound is not None, "the config asks for it"
    steps = range(1, math.ceil(1 / Fraction(str(share))))  # of a decimal, as for the budget
    keeps = [1.0, *(round(1 - step * share, 6) for step in steps)]
    least = Fraction(run.budget.smallest_limit) / Fraction(run.budget.total_cost)
    floor = max(1, math.ceil(10_000 * least)) / 1e4  # the last, though no whole step leads there
    possible = [*(keep for keep in keeps if keep > floor), floor]
    holds, breaks = 0, len(possible)  # places in the list
    start = Start(text=run.text, dtype=run.dtype, shared=workspace)
    held: Plan | None = None
    broke: Plan | None = None
    while breaks - holds > 1:
        place = (holds + breaks) // 2
        folder = workspace.directory / f"{STEP}{possible[place]}"
        member = replace(run.config, keep=possible[place])
        made = compress(member, options.into(folder, resume=True, overwrite=False), start)
        if beyond(made.plan, bound):
            breaks, broke = place, made.plan
        else:
            holds, held = place, made.plan
            start = replace(start, mask=held.mask)
    if held is None:
        assert broke is not None, "one budget is possible"
        workspace.drop()
        keep = broke.provenance["config"]["keep"]
        raise InputError(
            f"even the largest budget below the dense model, to keep {keep:g}, "
            f"{beyond(broke, bound)}: allow more, measure better with more "
            "--calibration-sequences, or take smaller steps with --set bound-step=0.01"
        )
    record = {"nats": bound, **_cost_of(held), "next": broke and _cost_of(broke)}
    made_by = {"config": run.config.as_dict(), "inputs": run.inputs, "bound": record}
    return replace(held, provenance={**held.provenance, **made_by})


def _cost_of(plan: Plan) -> dict[str, float]:
    """Share of the prunable cost that a plan may keep, and what it costs in nats per token."""
    names = ("excess", "excess_error")
    return {"keep": plan.provenance["config"]["keep"]} | {n: plan.provenance[n] for n in names}
