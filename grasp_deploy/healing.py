"""Healing: minutes of low-rank fine-tuning that bring a pruned model nearer to its dense one.

LoRA adapters (Hu et al. 2022, through PEFT) on every linear layer of the pruned model learn the
dense model's predictions on text; the weights that did best on held-out text are merged, so the
checkpoint keeps its shapes and is served as before.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from grasp_deploy.checkpoint.export import SHARD_BYTES, export, resolve_base
from grasp_deploy.checkpoint.files import check_writable, refuse_existing
from grasp_deploy.checkpoint.loading import (
    check_tokens,
    load_checked,
    load_tokenizer,
    resolve_device,
)
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_plan_fits
from grasp_deploy.checkpoint.renewal import intact_plan
from grasp_deploy.checkpoint.shapes import model_shape, read_config
from grasp_deploy.checkpoint.source import file_hashes
from grasp_deploy.checkpoint.validate import TensorEntry, check_checkpoint
from grasp_deploy.data import Blocks, calibration_split, read_blocks
from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.errors import InputError
from grasp_deploy.lessons import Course, HealConfig
from grasp_deploy.pruning.learning_state import CalibrationBlocks
from grasp_deploy.pruning.objective import OVERFLOW, mean_loss

Watcher = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Healed:
    """What a healing came to: losses on held-out blocks in nats per token."""

    output: Path
    steps: int
    seconds: float
    loss_dense: float
    loss_before: float
    loss_after: float


def heal(
    directory: Path,
    config: HealConfig,
    output: Path,
    *,
    model: str | None = None,
    overwrite: bool = False,
    watch: Watcher = lambda row: None,
) -> Healed:
    """Heal a pruned checkpoint into the folder `output`, which appears whole or not at all.

    `model` names the dense model to learn from, by default the one that the plan names. `watch`
    hears a row after every step. Raises InputError for anything wrong with the input, and where no
    check of the held-out loss found it lower than before.
    """
    refuse_existing(output, overwrite=overwrite)
    if not (directory / PLAN_FILE).is_file():
        raise InputError(f"{directory} is no pruned checkpoint: name a folder that compress made")
    check_checkpoint(directory)
    plan = intact_plan(directory)
    base = resolve_base(plan, model or plan.provenance["config"]["model"])
    check_plan_fits(plan, model_shape(read_config(base)), file_hashes(base))
    device = resolve_device(config.device)
    text, blocks = _text(directory, config)
    check_writable(output)  # better now than after the lessons
    teacher, student = (load_checked(d, device, config.dtype, "sdpa") for d in (base, directory))
    course = Course(config, blocks, teacher, student)
    if not math.isfinite(course.first_loss):
        raise InputError(f"the held-out loss is {course.first_loss}: {OVERFLOW}")
    for row in course.lessons():
        watch(row)
    if not course.best_loss < course.first_loss:
        raise InputError(
            f"the held-out loss was {course.first_loss:.4f} before healing and lower at no check "
            f"of it ({course.last_loss:.4f} at the last), so nothing was written: learn on more "
            "text, longer, or keep the model as it is"
        )
    healed = Healed(
        output,
        course.step,
        course.seconds,
        mean_loss(teacher, blocks.heldout, config.batch_size),
        course.first_loss,
        course.best_loss,
    )
    record = {**asdict(config), **asdict(healed), "text": text.as_dict()}
    record.pop("output")
    plan = replace(plan, calibrated=_merged(plan.calibrated, fingerprint(text.token_ids)))
    _write(course.merged(), plan, base, output, record, overwrite)
    return healed


def _text(directory: Path, config: HealConfig) -> tuple[Blocks, CalibrationBlocks]:
    """The text to learn from, and what of it is held out."""
    text = read_blocks(
        load_tokenizer(directory),
        config.calibration,
        calibration_split(config.calibration, config.calibration_split),
        config.calibration_column,
        config.sequence_length,
        config.sequences,
    )
    check_tokens(text.token_ids, read_config(directory))
    blocks = CalibrationBlocks.split(text.token_ids)
    if not len(blocks.heldout):
        raise InputError("one block of text cannot be learnt from and held out: use more")
    return text, blocks


def _merged(calibrated: Tensor | None, healed: Tensor | None) -> Tensor | None:
    """`(w,)` int64, ascending: the windows of both fingerprints, or of the one that there is."""
    known = [hashes for hashes in (calibrated, healed) if hashes is not None]
    return torch.cat(known).unique() if known else None


def check_installed() -> None:
    """InputError if PEFT is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            "healing needs PEFT, which is not installed: pip install 'grasp-deploy[heal]'"
        )


def _write(
    weights: dict[str, Tensor],
    plan: Plan,
    base: Path,
    output: Path,
    record: dict[str, Any],
    overwrite: bool,
) -> None:
    """Write the checkpoint: healed linear layers, and the plan's cut of all else."""
    provenance = {**plan.provenance, "fitted": sorted(weights), "healing": record}
    with tempfile.TemporaryDirectory(prefix="grasp-deploy-heal-") as folder:
        path = Path(folder) / "weights.safetensors"
        try:
            save_file(weights, path)
        except SafetensorError as error:
            raise InputError(
                f"{folder} cannot hold the healed weights ({error}): make room there, or point "
                "TMPDIR to a larger disk"
            ) from None
        fitted = {
            name: TensorEntry(path, "F32", tuple(tensor.shape)) for name, tensor in weights.items()
        }
        export(
            replace(plan, provenance=provenance),
            base,
            output,
            shard_bytes=SHARD_BYTES,
            overwrite=overwrite,
            fitted=fitted,
        )
