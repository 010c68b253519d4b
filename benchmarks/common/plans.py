"""Plans of random masks, for studies of shapes, speed and memory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.compression.result import budget_record
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.record import versions
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project


def random_mask(budget: Budget, seed: int) -> Tensor:
    """`(N,)` mask: the prefix of a random ranking that fits the budget."""
    generator = torch.Generator().manual_seed(seed)
    return project(torch.rand(budget.units.size, generator=generator), budget)


def random_scales(mask: Tensor, seed: int) -> Tensor:
    """`(N,)` scales between 0.5 and 1.5, and 1 where a unit is removed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.where(mask, 0.5 + torch.rand(len(mask), generator=generator), 1.0)


def plan_of(folder: Path, budget: Budget, mask: Tensor, scales: Tensor) -> Plan:
    """The plan of a mask, for the dense model in a folder."""
    units = budget.units
    provenance = {
        "model": folder.name,
        "revision": None,
        "weight_hashes": file_hashes(folder),
        "dense_layers": list(zip(units.ffn_channels, units.kv_groups, strict=True)),
        "cost_model": "parameters",
        "budget": budget_record(budget, mask),
        "config": asdict(CompressConfig(model=folder.name, keep=1.0)),
        "calibration": {
            "source": "none: not learnt",
            "sequences": 0,
            "sequence_length": 0,
            "heldout_sequences": 0,
        },
        "losses": {"heldout_dense": None, "heldout_pruned": None},
        "seconds": {"gates": 0.0, "scales": 0.0},
        "versions": versions(),
    }
    return Plan(mask.float(), mask, scales, provenance)
