"""The whole method, top-down: a model and a budget in, a smaller dense checkpoint out."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.write.export import write_checkpoint
from grasp_deploy.compression.frozen_model import (
    FrozenModel,
    load_for,
    refuse_infinite_weights,
    with_room,
)
from grasp_deploy.compression.mask import final_mask, fold_scales, learn_scales, refit
from grasp_deploy.compression.objective import Objective
from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.ranks import by_lead, is_lead
from grasp_deploy.compression.recovery import recover, state_room
from grasp_deploy.compression.result import (
    Compressed,
    beyond,
    excess_of,
    finished_plan,
    provenance_of,
)
from grasp_deploy.compression.resume import METRICS_FILE, Workspace
from grasp_deploy.compression.run_options import FROM_DENSE, RunOptions, Start, options_of
from grasp_deploy.compression.scores import initial_scores, learn_gates
from grasp_deploy.compression.stage_memory import output_values
from grasp_deploy.compression.stages import Stages
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import Blocks
from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import check_room, refuse_existing, staged_directory
from grasp_deploy.files.progress import OnProgress, counts_of

Learnt = tuple[Plan, dict[str, Path], Blocks]  # the file of each fitted tensor; the text


def compress(
    config: CompressConfig, output: RunOptions | str | Path, start: Start | None = None
) -> Compressed:
    """Compress a model into a folder, which appears whole or not at all.

    `output` is that folder, or options that name it. A killed run continues from `OUTPUT.partial`
    with `resume`; on a CPU it ends in the same mask and scales bit for bit. One run of several has
    a `start`, from a larger budget. Raises InputError for any input that cannot be used.
    """
    options = options_of(output)
    if start is None and config.walks:
        raise InputError(
            "one checkpoint of one budget is made here: use compress_family for several, and "
            "compress_within for a bound on the loss"
        )
    replaces = options.overwrite or options.resume
    by_lead(lambda: refuse_existing(options.output, overwrite=replaces))
    run = prepare(config, options.begun, start or FROM_DENSE)
    with Workspace.open(options, run) as workspace:
        plan = by_lead(lambda: finished_plan(options, run))
        if plan is None:  # else the run was killed after the output was complete
            by_lead(lambda: check_disk(run, workspace, options.output))
            place = staged_directory(options.output, overwrite=options.overwrite)
            with place if is_lead() else nullcontext(options.output) as folder:
                make = learn_plan if run.start.checkpoint is None else plan_of_checkpoint
                learn = partial(make, run, workspace, options.on_progress)
                plan, fitted, text = with_room(run, learn)
                bound = config.max_loss if start is None else None
                if bound and (objection := beyond(plan, bound)):
                    workspace.drop()
                    raise InputError(
                        f"this budget {objection}: nothing is written; allow more, measure better "
                        "with more --calibration-sequences, or ask for a larger model"
                    )
                if config.recover is not None:
                    told = replace(run, text=text)
                    plan, fitted = recover(told, workspace, plan, fitted, options.on_progress)
                if is_lead():
                    write_checkpoint(
                        plan,
                        run.base,
                        folder,
                        fitted=fitted,
                        beside={METRICS_FILE: workspace.metrics()},
                        on_progress=counts_of("export", options.on_progress),
                    )
    return Compressed.of(options.output, plan, run)


def check_disk(run: PreparedRun, workspace: Workspace, output: Path) -> None:
    """Raise InputError if the disk lacks room for the checkpoint and what is saved before it.

    Refitted columns lie there in the model's dtype: of the rounds, and of the last refit. With
    scales they are in float32. Recovery has its state.
    """
    needed_bytes = run.predicted.weight_bytes
    if run.config.compensation and run.start.checkpoint is None:
        copies = 1 + run.config.learns
        needed_bytes += output_values(run.predicted) * (copies * run.dtype.itemsize + 4)
    saved = map(workspace.path, ("start", "compensation", "fitted"))
    needed_bytes -= sum(path.stat().st_size for path in saved if path.exists())
    if run.config.recover is not None:
        needed_bytes += state_room(run, workspace)
    check_room(output, needed_bytes, "the run")


def plan_of_checkpoint(
    run: PreparedRun, workspace: Workspace, on_progress: OnProgress, offload: bool
) -> Learnt:
    """The plan and fitted tensors of the checkpoint that a run starts from, and its text."""
    plan, fitted = run.pruned_before
    stages = Stages(workspace, run.budget.units, on_progress)
    return plan, fitted, with_own_text(run, lambda: load_for(run, offload), stages).text


def learn_plan(
    run: PreparedRun, workspace: Workspace, on_progress: OnProgress, offload: bool
) -> Learnt:
    """Decide scores, mask and scales under the budget, and which tensors are refitted."""
    model = load_for(run, offload)
    refuse_infinite_weights(model, run)
    stages = Stages(workspace, run.budget.units, on_progress)
    run = with_own_text(run, lambda: model, stages)  # half of the text, in the model's own words
    frozen = FrozenModel(run, model)  # from here on no weight takes a gradient
    heldout = run.blocks.heldout[run.split.judges]
    dense = frozen.heldout_losses(heldout)
    initial, reached = initial_scores(frozen, stages)  # iterative pruning in rounds, by default
    learning = frozen, stages, Objective(frozen, stages)
    scores = learn_gates(*learning, initial, reached)  # section 3.3: on budget at every step
    mask = final_mask(frozen, scores, reached)
    refit(*learning, mask)  # least squares
    scales, norms = learn_scales(*learning, mask)  # section 3.4
    del learning  # and the dense model's hidden states
    pruned, witness = (
        frozen.heldout_losses(text, mask * scales, norms) for text in (heldout, run.split.witness)
    )
    named = {"heldout_dense": dense, "heldout_pruned": pruned, "witness": witness}
    losses = {name: fmean(found) if found else None for name, found in named.items()}
    fitted = fold_scales(frozen, stages, mask, scales)
    plan = Plan(
        scores.float().cpu(),
        mask.cpu(),
        scales.cpu(),
        {**provenance_of(run, stages, mask, losses, fitted), **excess_of(run, dense, pruned)},
        calibrated=fingerprint(run.text.token_ids),
        norm_scales=None if norms is None else norms.cpu(),
        witness=run.split.witness if fitted else None,
    )
    return plan, fitted, run.text
