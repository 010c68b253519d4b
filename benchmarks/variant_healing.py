"""Healing of a study's compressed models, on the text that they were calibrated on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.healing.heal import NothingWon, heal
from grasp_deploy.healing.lora import HealConfig

BRIEF = {"sequences": 64, "steps": 20, "rank": 4}


@dataclass(frozen=True)
class Outcome:
    """What a healing leaves: the healed model, or the pruned one where nothing was won."""

    folder: Path
    seconds: float
    loss_before: float  # on held-out blocks, in nats per token
    loss_after: float


def heal_config(config: CompressConfig, healing: dict[str, Any]) -> HealConfig:
    """Of the text, seed and blocks of a compression; `healing` has what differs from defaults."""
    same = {
        "calibration": config.calibration[0],
        "calibration_split": config.calibration_split,
        "sequences": config.sequences,
        "sequence_length": config.sequence_length,
        "seed": config.seed,
    }
    return HealConfig(**{**same, **healing})


def healed(
    pruned: Path, config: CompressConfig, healing: dict[str, Any], on_progress: OnProgress
) -> Outcome:
    """The checkpoint `pruned` healed, in a folder beside it; as it is if that won nothing."""
    try:
        better = heal(
            pruned,
            heal_config(config, healing),
            pruned.with_name("healed"),
            on_progress=on_progress,
        )
    except NothingWon as error:  # that is a result too, and the study has more to measure
        return Outcome(pruned, error.seconds, error.loss_before, error.loss_before)
    return Outcome(better.output, better.seconds, better.loss_before, better.loss_after)
