"""The whole method, top-down: a model and a budget in, a smaller dense checkpoint out.

scores   learn one gate score per unit on the frozen model, projected onto the budget each step
mask     the units kept by the scores that did best on held-out text
scales   learn one multiplier per kept unit while the mask stands still
plan     scores, mask and scales with their provenance
export   cut the base weights by the plan and fold the scales in
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import grasp_deploy
from grasp_deploy.budgets import budget_for, budget_record
from grasp_deploy.checkpoint.export import SHARD_BYTES, export
from grasp_deploy.checkpoint.files import refuse_existing
from grasp_deploy.checkpoint.loading import (
    check_tokens,
    load_checked,
    load_tokenizer,
    resolve_device,
)
from grasp_deploy.checkpoint.plan import Plan, open_scales
from grasp_deploy.checkpoint.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.source import ModelSource, file_hashes, resolve_model
from grasp_deploy.checkpoint.validate import check_weights, stored_dtype
from grasp_deploy.config import CompressConfig
from grasp_deploy.data import Blocks, calibration_split, read_blocks
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.projection import Budget
from grasp_deploy.pruning.scales import learn_scales
from grasp_deploy.pruning.training import (
    CalibrationBlocks,
    LearningState,
    LossError,
    Schedule,
    freeze,
    keep_mask,
    learn_scores,
    mean_loss,
)
from grasp_deploy.record import versions
from grasp_deploy.workspace import METRICS_FILE, Workspace

Watcher = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """A compression whose input has been checked and whose model is not loaded yet."""

    config: CompressConfig
    source: ModelSource
    shape: ModelShape  # of the dense model
    device: torch.device
    budget: Budget
    text: Blocks
    weight_hashes: dict[str, str]  # SHA-256 by file name

    @property
    def inputs(self) -> dict[str, Any]:
        """What tells a resumed run that the files behind the config's names have changed."""
        return {
            "weights": self.weight_hashes,
            "calibration tokens": self.text.as_dict()["token_ids_sha256"],
            "costs": hashlib.sha256(self.budget.costs.cpu().numpy().tobytes()).hexdigest(),
        }

    @property
    def blocks(self) -> CalibrationBlocks:
        return CalibrationBlocks.split(self.text.token_ids)

    @property
    def group_width(self) -> int:
        """`G·D`: attention outputs of one KV group."""
        return self.shape.query_heads_per_group * self.shape.head_dim

    def schedule(self, epochs: int) -> Schedule:
        config = self.config
        return Schedule(
            epochs=epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            seed=config.seed,
            select_best=config.select == "best",
        )


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
    watch: Watcher = lambda row: None,
) -> Compressed:
    """Compress a model into the folder `output`, which appears whole or not at all.

    `watch` hears a row of metrics after every step, and of the export. A killed run goes on from
    `OUTPUT.partial` with `resume` and ends in the same mask and scales bit for bit.

    Raises InputError for anything wrong with the input.
    """
    output = Path(output)
    refuse_existing(output, overwrite=overwrite)
    job = prepare(config)
    with Workspace.open(
        output, config, job.inputs, resume=resume, overwrite=overwrite
    ) as workspace:
        plan = learn_plan(job, workspace, watch)
        pruned = export(
            plan,
            job.source.directory,
            output,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            beside={METRICS_FILE: workspace.metrics()},
            on_progress=lambda done, of: watch({"stage": "export", "step": done, "steps": of}),
        )
        workspace.remove()
    return Compressed(output, plan, job.shape, pruned, _peak_memory_bytes(job.device))


def prepare(config: CompressConfig) -> Job:
    """Check everything that can be checked before weights load."""
    device = resolve_device(config.device)
    source = resolve_model(config.model, config.revision)
    stated = read_config(source.directory)
    shape = model_shape(stated)
    if shape.pruned:
        raise InputError(
            f"{config.model} is already pruned: compress the model that it came from with a "
            "smaller budget (its plan names it)"
        )
    shape = replace(shape, dtype=stored_dtype(check_weights(source.directory, shape)))
    budget = budget_for(config, shape, device)
    text = read_blocks(
        load_tokenizer(source.directory),
        config.calibration,
        calibration_split(config.calibration, config.calibration_split),
        config.calibration_column,
        config.sequence_length,
        config.sequences,
    )
    check_tokens(text.token_ids, stated)
    return Job(config, source, shape, device, budget, text, file_hashes(source.directory))


def learn_plan(job: Job, workspace: Workspace, watch: Watcher) -> Plan:
    """Learn scores, mask and scales on the frozen model."""
    config = job.config
    model = load_checked(job.source.directory, job.device, config.dtype, config.attention)
    freeze(model, config.gradient_checkpointing)
    try:
        scores, gate_seconds = _learn_scores(job, model, workspace, watch)
        mask = keep_mask(scores, job.budget, config.temperature, _per_cost(config))
        scales, scale_seconds = _learn_scales(job, model, mask, workspace, watch)
        losses = _heldout_losses(job, model, mask, scales)
    except LossError as error:
        raise InputError(str(error)) from None
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{job.device} is out of memory ({str(error).splitlines()[0]}): try "
            "--gradient-checkpointing, a shorter --sequence-length, or --dtype bfloat16"
        ) from None
    return Plan(
        scores=scores.cpu(),
        mask=mask.cpu(),
        scales=scales.cpu(),
        provenance=_provenance(job, mask, losses)
        | {"seconds": {"gates": gate_seconds, "scales": scale_seconds}},
    )


def _learn_scores(
    job: Job, model: nn.Module, workspace: Workspace, watch: Watcher
) -> tuple[Tensor, float]:
    """`(N,)` scores, zero at the start, and the seconds it took."""
    start = torch.zeros(job.budget.units.size, device=job.device)
    schedule = job.schedule(job.config.epochs)
    state = LearningState(start, schedule.learning_rate)
    seconds = workspace.restore("gates", state)
    steps = learn_scores(
        model,
        job.budget,
        job.group_width,
        job.blocks,
        schedule,
        state,
        temperature=job.config.temperature,
        per_cost=_per_cost(job.config),
    )
    for row in workspace.follow("gates", steps, state, job.budget.units, seconds):
        watch(row)
        seconds = row["seconds"]
    return state.chosen(schedule.select_best), seconds


def _learn_scales(
    job: Job, model: nn.Module, mask: Tensor, workspace: Workspace, watch: Watcher
) -> tuple[Tensor, float]:
    """`(N,)` scales, 1 at the start and wherever a unit is removed, and the seconds it took."""
    schedule = job.schedule(job.config.scale_epochs)
    state = LearningState(open_scales(mask).to(job.device), schedule.learning_rate)
    seconds = workspace.restore("scales", state)
    units = job.budget.units
    steps = learn_scales(model, units, job.group_width, mask, job.blocks, schedule, state)
    for row in workspace.follow("scales", steps, state, units, seconds):
        watch(row)
        seconds = row["seconds"]
    return state.chosen(schedule.select_best), seconds


def _heldout_losses(
    job: Job, model: nn.Module, mask: Tensor, scales: Tensor
) -> dict[str, float | None]:
    """Loss on the held-out blocks in nats per token, dense and pruned; None if none is held out."""
    heldout, batch_size = job.blocks.heldout, job.config.batch_size
    if not len(heldout):
        return {"heldout_dense": None, "heldout_pruned": None}
    dense = mean_loss(model, heldout, batch_size)
    with gated(model, job.budget.units, job.group_width) as gates:
        gates.assign(mask * scales)
        return {"heldout_dense": dense, "heldout_pruned": mean_loss(model, heldout, batch_size)}


def _per_cost(config: CompressConfig) -> bool:
    return config.ranking == "score-per-cost"


def _provenance(job: Job, mask: Tensor, losses: dict[str, float | None]) -> dict[str, Any]:
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


def is_result_of(plan: Plan, job: Job) -> bool:
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
