"""Healing of a study's compressed models, on the text that they were calibrated on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from grasp_deploy.config import CompressConfig
from grasp_deploy.healing import Healed, heal
from grasp_deploy.lessons import HealConfig

Watcher = Callable[[dict[str, Any]], None]
BRIEF = {"sequences": 64, "steps": 20, "rank": 4}


def heal_config(config: CompressConfig, healing: dict[str, Any]) -> HealConfig:
    """Of the text, seed and blocks of a compression; `healing` has what differs from defaults."""
    same = {
        "calibration": config.calibration,
        "calibration_split": config.calibration_split,
        "sequences": config.sequences,
        "sequence_length": config.sequence_length,
        "seed": config.seed,
    }
    return HealConfig(**{**same, **healing})


def healed(pruned: Path, config: CompressConfig, healing: dict[str, Any], watch: Watcher) -> Healed:
    """The checkpoint `pruned` healed, in a folder beside it."""
    return heal(pruned, heal_config(config, healing), pruned.with_name("healed"), watch=watch)
