"""Healing of a study's compressed models, on the text that they were calibrated on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.healing.heal import NothingWon, heal
from grasp_deploy.healing.settings import HealConfig

SHARED_OPTIONS = ("calibration", "calibration_split", "sequences", "sequence_length", "seed")


@dataclass(frozen=True)
class Outcome:
    """The healed model, or the pruned one if healing won nothing; losses in nats per token."""

    folder: Path
    seconds: float
    loss_before: float
    loss_after: float


def healed(
    pruned: Path, config: CompressConfig, options: dict[str, Any], on_progress: OnProgress
) -> Outcome:
    """Heal a checkpoint, in a folder beside it.

    `options` of HealConfig differ from its defaults; text, seed and sequences are those of the
    compression's `config`.
    """
    shared = {name: getattr(config, name) for name in SHARED_OPTIONS}
    heal_config = HealConfig(**{**shared, **options})
    try:
        result = heal(pruned, heal_config, pruned.with_name("healed"), on_progress=on_progress)
    except NothingWon as error:  # a result too, and the study has more to measure
        return Outcome(pruned, error.seconds, error.loss_before, error.loss_before)
    return Outcome(result.output, result.seconds, result.loss_before, result.loss_after)
