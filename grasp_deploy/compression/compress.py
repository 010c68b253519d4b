"""The whole method, top-down: a model and a budget in, a smaller dense checkpoint out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import Plan, pruned_shape
from grasp_deploy.checkpoint.write.export import SHARD_BYTES, write_checkpoint
from grasp_deploy.compression.excess import check_measurable, is_beyond, with_excess
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.mask import final_mask, fold_scales, learn_scales, refit
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.result import (
    Compressed,
    finished_plan,
    peak_memory_bytes,
    provenance_of,
)
from grasp_deploy.compression.resume import METRICS_FILE, Workspace, refuse_unfinished_family
from grasp_deploy.compression.room import with_room
from grasp_deploy.compression.scores import initial_scores, learn_gates
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import refuse_existing, staged_directory
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.pruning.ranks import by_lead, is_lead, leave

Learnt = tuple[Plan, dict[str, Path], Workspace]  # the files of its fitted tensors; its metrics


def compress(
    config: CompressConfig,
    output: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Compressed:
    """Compress a model into the folder `output`, which appears whole or not at all.

    `on_progress` receives a row of metrics after every step. A killed run continues from
    `OUTPUT.partial` with `resume`; on a CPU it ends in the same mask and scales bit for bit. Raises
    InputError for any input that cannot be used.
    """
    if config.walks:
        raise InputError(
            "one checkpoint of one budget is made here: use compress_family for several, and "
            "compress_within for a bound on the loss"
        )

    def learn(run: PreparedRun, workspace: Workspace) -> Learnt:
        return (*learn_plan(run, workspace, on_progress), workspace)

    return make_checkpoint(config, output, learn, shard_bytes, resume, overwrite, on_progress)


def make_checkpoint(
    config: CompressConfig,
    output: str | Path,
    learn: Callable[[PreparedRun, Workspace], Learnt],
    shard_bytes: int,
    resume: bool,
    overwrite: bool,
    on_progress: OnProgress,
) -> Compressed:
    """Learn a plan and write its checkpoint, unless a killed run has done so already."""
    output = Path(output)
    by_lead(lambda: refuse_unfinished_family(output))
    by_lead(lambda: refuse_existing(output, overwrite=overwrite or resume))
    run = prepare(config, output if resume else None)
    check_measurable(run)
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite}
    with Workspace.open(output, run, **options) as workspace:
        plan = by_lead(lambda: finished_plan(output, run)) if resume else None
        if plan is None:  # else the run was killed behind its end
            with place_for(output, overwrite, run) as staging:
                plan, fitted, part = learn(run, workspace)
                if leave():
                    write_planned(plan, fitted, run, part, staging, shard_bytes, on_progress)
    return compressed(output, plan, run)


def place_for(output: Path, overwrite: bool, run: PreparedRun) -> AbstractContextManager[Path]:
    """A folder to write the checkpoint into, on the rank that writes it."""
    if not is_lead():
        return nullcontext(output)
    return staged_directory(output, overwrite=overwrite, size_bytes=run.predicted_bytes)


def compressed(output: Path, plan: Plan, run: PreparedRun) -> Compressed:
    """The result of a run in a folder."""
    dense, peak_bytes = run.base.shape, peak_memory_bytes(run.device)
    return Compressed(output, plan, dense, pruned_shape(plan, dense), peak_bytes)


def write_planned(
    plan: Plan,
    fitted: dict[str, Path],
    run: PreparedRun,
    workspace: Workspace,
    staging: Path,
    shard_bytes: int,
    on_progress: OnProgress,
) -> None:
    """Write the checkpoint of a learnt plan, with the metrics of its stages."""
    write_checkpoint(
        plan,
        run.base,
        staging,
        fitted=fitted,
        shard_bytes=shard_bytes,
        beside={METRICS_FILE: workspace.metrics()},
        on_progress=lambda done, total: on_progress(
            {"stage": "export", "step": done, "steps": total}
        ),
    )


def learn_plan(
    run: PreparedRun, workspace: Workspace, on_progress: OnProgress
) -> tuple[Plan, dict[str, Path]]:
    """Decide scores, mask and scales on the frozen model, and which tensors are refitted."""

    def learn(offload: bool) -> tuple[Plan, dict[str, Path]]:
        frozen = FrozenModel(run, workspace, on_progress, offload=offload)
        dense_losses = frozen.heldout_losses() if run.config.is_bound else []
        plan, fitted = plan_of(frozen, frozen.heldout_loss())
        return with_excess(plan, frozen, dense_losses), fitted

    plan, fitted = with_room(run, learn)
    bound = run.config.bound_nats
    if bound is not None and is_beyond(plan, bound):
        workspace.drop()
        excess, error = (plan.provenance[name] for name in ("excess", "excess_error"))
        raise InputError(
            f"this budget costs {excess:+.4f} ± {error:.4f} nats per token on held-out text, over "
            f"the bound of {bound:.4g}: nothing is written; allow more, or ask for a larger model"
        )
    return plan, fitted


def plan_of(frozen: FrozenModel, dense_loss: float | None) -> tuple[Plan, dict[str, Path]]:
    """Decide scores, mask and scales under the budget of a run, from what was reached before it."""
    losses = {"heldout_dense": dense_loss}
    initial, reached = initial_scores(frozen)  # iterative pruning in rounds, by default
    scores = learn_gates(frozen, initial)  # section 3.3: on budget at every step
    mask = final_mask(frozen, scores, reached)
    refit(frozen, mask)  # least squares
    scales, norms = learn_scales(frozen, mask)  # section 3.4
    witness = frozen.run.witness
    losses["heldout_pruned"] = frozen.heldout_loss(mask * scales, norms)
    losses["witness"] = frozen.heldout_loss(mask * scales, norms, witness)
    fitted = fold_scales(frozen, mask, scales)
    provenance = provenance_of(frozen, mask, losses, fitted)
    calibrated = fingerprint(frozen.run.text.token_ids)
    vectors = scores.float().cpu(), mask.cpu(), scales.cpu()
    norms = None if norms is None else norms.cpu()
    return Plan(*vectors, provenance, calibrated, norms, witness if fitted else None), fitted
