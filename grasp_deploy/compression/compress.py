"""The whole method, top-down: a model and a budget in, a smaller dense checkpoint out.

scores        score the units that are left, in rounds, while the budget falls to its target; or
              learn a gate per unit on the frozen model, projected onto the budget at each step
mask          the units that the scores keep; of several masks the one best on held-out text
compensation  solve the kept output columns, so that hidden states stay near the dense model's
scales        learn one multiplier per kept unit while the mask stands still
plan          scores, mask and scales with their provenance
export        cut the base weights by the plan and fold the scales in
"""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import grasp_deploy
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.checkpoint.read.validate import TensorEntry
from grasp_deploy.checkpoint.write.checkpoint import SHARD_BYTES, write_checkpoint
from grasp_deploy.compression.budget import budget_record
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.resume import METRICS_FILE, Workspace
from grasp_deploy.compression.stages import Stages
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError, first_line
from grasp_deploy.files.outputs import refuse_existing
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import versions
from grasp_deploy.pruning.compensation import Fit
from grasp_deploy.pruning.objective import LossError
from grasp_deploy.pruning.training import freeze


@dataclass(frozen=True)
class Compressed:
    """What a compression came to."""

    output: Path
    plan: Plan
    dense: ModelShape
    pruned: ModelShape
    peak_memory_bytes: int  # of the device while learning; on the CPU of the whole process


def compress(
    config: CompressConfig,
    output: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress = lambda row: None,
) -> Compressed:
    """Compress a model into the folder `output`, which appears whole or not at all.

    `on_progress` hears a row of metrics after every step, and of the export. A killed run goes on from
    `OUTPUT.partial` with `resume`, and on a CPU ends in the same mask and scales bit for bit.

    Raises InputError for anything wrong with the input.
    """
    output = Path(output)
    refuse_existing(output, overwrite=overwrite)
    job = prepare(config)
    began_with = {**job.inputs, **job.computed_by}
    with Workspace.open(
        output, config, began_with, resume=resume, overwrite=overwrite
    ) as workspace:
        plan, fitted = learn_plan(job, workspace, on_progress)
        pruned = write_checkpoint(
            plan,
            job.base,
            output,
            fitted=fitted,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            beside={METRICS_FILE: workspace.metrics()},
            on_progress=lambda done, of: on_progress(
                {"stage": "export", "step": done, "steps": of}
            ),
        )
        workspace.remove()
    return Compressed(output, plan, job.shape, pruned, _peak_memory_bytes(job.device))


def learn_plan(
    job: PreparedRun, workspace: Workspace, on_progress: OnProgress
) -> tuple[Plan, dict[str, TensorEntry]]:
    """Decide scores, mask and scales on the frozen model, and what tensors are fitted to them."""
    config = job.config
    model = load_checked(job.source.directory, job.device, config.dtype, config.attention)
    freeze(model, config.gradient_checkpointing)
    subject = FrozenModel(job, model, workspace, on_progress)
    stages = Stages(subject)
    fits: list[Fit] = []
    fitted: dict[str, TensorEntry] = {}
    try:
        dense_loss = subject.heldout_loss()
        scores, masks = stages.scores()
        mask = masks[0]
        if config.compensation:
            mask, fits = stages.compensation(masks)
        scales = stages.scales(mask)
        losses = {
            "heldout_dense": dense_loss,
            "heldout_pruned": subject.heldout_loss(mask * scales),
        }
        if fits:
            fitted = stages.fitted(mask, scales)
    except LossError as error:
        raise InputError(str(error)) from None
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{job.device} is out of memory ({first_line(error)}): try "
            "--gradient-checkpointing, a shorter --sequence-length, fewer "
            "--compensation-sequences, or --dtype bfloat16"
        ) from None
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise InputError(
            f"the least squares of a layer cannot be solved ({first_line(error)}): take "
            "more text (--sequences), another one, or --method taylor-element --no-compensation"
        ) from None
    provenance = {
        **_provenance(job, mask, losses),
        "seconds": stages.seconds,
        "fitted": sorted(fitted),
        "compensation": [asdict(fit) for fit in fits],
        **({"swaps": stages.swaps} if config.swap_groups else {}),
    }
    return Plan(scores.cpu(), mask.cpu(), scales.cpu(), provenance, job.calibrated), fitted


def _provenance(job: PreparedRun, mask: Tensor, losses: dict[str, float | None]) -> dict[str, Any]:
    """Where the plan comes from: enough to make it again, and to tell a wrong base model."""
    units = job.budget.units
    return {
        "model": job.source.name,
        "revision": job.source.revision,
        "weight_hashes": job.weight_hashes,
        "dense_layers": list(zip(units.ffn_channels, units.kv_groups, strict=True)),
        "cost_model": job.config.cost_model,
        "budget": budget_record(job.budget, mask),
        "config": asdict(job.config),
        "calibration": job.text.as_dict() | {"heldout_sequences": len(job.blocks.heldout)},
        "inputs": job.inputs,
        "losses": losses,
        "versions": versions(),
    }


def is_result_of(plan: Plan, job: PreparedRun) -> bool:
    """Whether a plan is what this job would make: same options, seed, files and release."""
    made = plan.provenance
    return (
        made["versions"].get("grasp_deploy") == grasp_deploy.__version__
        and made["config"] == asdict(job.config)
        and made.get("inputs") == job.inputs
    )


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
