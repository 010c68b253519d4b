"""Calibrating a scale per kept unit while the mask stands still (section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.learning_state import (
    CalibrationBlocks,
    LearningState,
    Schedule,
)
from grasp_deploy.pruning.training import StepRecord, descend
from grasp_deploy.pruning.units import UnitTable


def learn_scales(
    model: nn.Module,
    units: UnitTable,
    group_width: int,
    mask: Tensor,
    blocks: CalibrationBlocks,
    schedule: Schedule,
    state: LearningState,
) -> Iterator[StepRecord]:
    """Learn `(N,)` multipliers of the kept units, 1 at the start, at the gates' own places.

    A gate is `m·scale`: removed units stay at 0 and get no gradient. Errors: as for the scores.
    """
    kept = mask.to(state.values.dtype)

    def gates_now(_step: int | None) -> tuple[Tensor, Tensor]:
        return kept * state.values, mask

    with gated(model, units, group_width) as gates:
        yield from descend("scales", model, gates, gates_now, blocks, schedule, state)
