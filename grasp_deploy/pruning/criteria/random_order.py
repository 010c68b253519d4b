"""Scores that know nothing: a seeded order, the baseline of every other criterion."""

from __future__ import annotations

import torch
from torch import Tensor

from grasp_deploy.pruning.units import UnitTable


def random_scores(units: UnitTable, seed: int) -> Tensor:
    """`(N,)` float64, a permutation of 0, 1/N, ... drawn on the CPU: the same for every device."""
    order = torch.randperm(units.size, generator=torch.Generator().manual_seed(seed))
    return order.double() / units.size
