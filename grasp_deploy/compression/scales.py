"""The learnt scales: one multiplier per kept unit while the mask stands still (section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.pruning import training


def learn_scales(frozen: FrozenModel, mask: Tensor) -> Tensor:
    """`(N,)` scales of a `(N,)` mask, 1 at the start and wherever a unit is removed."""
    run, schedule = frozen.run, frozen.run.scale_schedule
    return frozen.learn(
        "scales",
        torch.ones(len(mask), device=run.device),
        schedule,
        lambda state: training.learn_scales(frozen.model, run.budget.units, mask, schedule, state),
    )
