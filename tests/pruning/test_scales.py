"""Calibrating scales: only kept units move, and the mask stands still."""

from __future__ import annotations

import torch

from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.learning_state import LearningState
from grasp_deploy.pruning.objective import mean_loss
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import freeze, learn_scales
from grasp_deploy.pruning.units import UnitTable
from tests.tiny import tiny_model

UNITS = UnitTable.of_layers([(96, 2)] * 3)
MASK = torch.rand(UNITS.size, generator=torch.Generator().manual_seed(1)) < 0.6
IDS = torch.randint(256, (8, 16), generator=torch.Generator().manual_seed(0))


def test_kept_units_learn_a_scale_and_removed_ones_stay_at_one() -> None:
    model = tiny_model("llama")
    freeze(model)
    blocks = CalibrationBlocks(IDS, IDS[:0])
    schedule = Schedule(epochs=5, batch_size=4, learning_rate=0.01, seed=0, select="last")
    state = LearningState(torch.ones(UNITS.size), schedule.learning_rate)
    records = list(learn_scales(model, UNITS, 64, MASK, blocks, schedule, state))
    scales = state.chosen(schedule.select)
    assert len(records) == 10
    assert all(torch.equal(record.mask, MASK) for record in records)
    assert bool((scales[~MASK] == 1).all())
    assert bool((scales[MASK] != 1).all())

    # Learnt on these very blocks, the scales must make them likelier.
    with gated(model, UNITS, 64) as gates:
        gates.assign(MASK.float())
        before = mean_loss(model, IDS, 4)
        gates.assign(MASK * scales)
        assert mean_loss(model, IDS, 4) < before - 0.05
