"""Healing: minutes of low-rank fine-tuning that bring a pruned model nearer to its dense one.

LoRA adapters (Hu et al. 2022, through PEFT) on every linear layer of the pruned model learn the
dense model's predictions on text. The weights that did best on held-out text are merged, so the
checkpoint keeps its shapes and is served as before.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import intact_plan
from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.plan import Plan, check_pruned
from grasp_deploy.checkpoint.read.loading import (
    check_tokens,
    load_checked,
    load_tokenizer,
    resolve_device,
)
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.export import base_of, write_checkpoint
from grasp_deploy.data import Blocks, calibration_sources, read_blocks
from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import check_room, refuse_existing, staged_directory
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.tensors import digest_of
from grasp_deploy.healing.lora import LoraDistiller
from grasp_deploy.healing.settings import HealConfig
from grasp_deploy.pruning.objective import OVERFLOW, mean_loss
from grasp_deploy.pruning.schedule import CalibrationBlocks


@dataclass(frozen=True)
class Healed:
    """Result of a healing; losses are on held-out sequences, in nats per token."""

    output: Path
    steps: int
    seconds: float
    loss_dense: float
    loss_before: float
    loss_after: float


class NothingWon(InputError):
    """A healing that ended no better than it began: nothing was written."""

    def __init__(self, loss_before: float, loss_after: float, seconds: float, dtype: str) -> None:
        self.loss_before, self.seconds = loss_before, seconds
        super().__init__(
            f"healing won nothing, so nothing was written: the held-out loss was {loss_before:.4f} "
            f"before, and is {loss_after:.4f}, no lower with the best weights in {dtype}: learn on "
            "more text or longer, lower --learning-rate, or keep the model as it is"
        )


def check_installed() -> None:
    """InputError if PEFT is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            "healing needs PEFT, which is not installed: pip install 'grasp-deploy[heal]'"
        )


def heal(
    directory: Path,
    config: HealConfig,
    output: Path,
    *,
    model: str | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Healed:
    """Heal a pruned checkpoint into the folder `output`, which appears whole or not at all.

    `model` names the dense model to learn from, by default the one that the plan names.
    `on_progress` gets a row after every step. Raises InputError for anything wrong with the input,
    and NothingWon where the held-out loss did not fall.
    """
    refuse_existing(output, overwrite=overwrite)
    check_pruned(directory)
    shape = read_stored_model(directory).shape
    plan = intact_plan(directory)
    base = base_of(plan, model, "there is nothing to learn from")
    device = resolve_device(config.device)
    text, blocks = _read_text(directory, config)
    with staged_directory(output, overwrite=overwrite, size_bytes=shape.weight_bytes) as staging:
        teacher, student = (
            load_checked(d, device, config.dtype, "sdpa") for d in (base.directory, directory)
        )
        distiller = LoraDistiller(config, blocks, teacher, student)
        loss_before = distiller.best_loss
        if not math.isfinite(loss_before):
            raise InputError(f"the held-out loss is {loss_before}: {OVERFLOW}")
        for row in distiller.learn():
            on_progress(row)
        weights = distiller.merge(getattr(torch, shape.dtype))
        loss_after = distiller.heldout_loss()
        if not loss_after < loss_before:
            raise NothingWon(loss_before, loss_after, distiller.seconds, shape.dtype)
        loss_dense = mean_loss(teacher, blocks.heldout, config.batch_size)
        losses = loss_dense, loss_before, loss_after
        healed = Healed(output, distiller.step, distiller.seconds, *losses)
        record = {**asdict(config), **asdict(healed), "text": text.as_dict()}
        del record["output"]
        _write(weights, _healed_plan(plan, record, text, distiller), base, staging)
    return healed


def _read_text(directory: Path, config: HealConfig) -> tuple[Blocks, CalibrationBlocks]:
    (source,) = calibration_sources(
        [config.calibration], config.calibration_split, config.calibration_column
    )
    text = read_blocks(load_tokenizer(directory), source, config.sequence_length, config.sequences)
    check_tokens(text.token_ids, read_config(directory))
    blocks = CalibrationBlocks.split(text.token_ids)
    if not len(blocks.heldout):
        raise InputError("one sequence cannot be learnt from and held out: use more --sequences")
    return text, blocks


def _healed_plan(
    plan: Plan, record: dict[str, Any], text: Blocks, distiller: LoraDistiller
) -> Plan:
    hashes = [h for h in (plan.calibrated, fingerprint(text.token_ids)) if h is not None]
    calibrated = torch.cat(hashes).unique() if hashes else None  # (w,), ascending
    healings = [*plan.provenance.get("healing", []), record]
    witness = distiller.blocks.witness
    loss = mean_loss(distiller.student, witness, distiller.config.batch_size)
    losses = {**plan.provenance["losses"], "witness": loss}
    provenance = {**plan.provenance, "losses": losses, "healing": healings}
    return replace(plan, calibrated=calibrated, witness=witness, provenance=provenance)


def _write(weights: dict[str, Tensor], plan: Plan, base: StoredModel, staging: Path) -> None:
    """Write the checkpoint: healed linear layers, and the plan's cut of all other tensors."""
    plan.provenance["fitted"] = {name: digest_of(weights[name]) for name in sorted(weights)}
    with tempfile.TemporaryDirectory(prefix="grasp-deploy-heal-") as folder:
        path = Path(folder) / "weights.safetensors"
        check_room(path, sum(tensor.nbytes for tensor in weights.values()))
        save_file(weights, path)
        write_checkpoint(plan, base, staging, fitted=dict.fromkeys(weights, path))
