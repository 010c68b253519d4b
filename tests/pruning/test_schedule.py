"""The schedule: held-out sequences, order of batches, checks and learning rates."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule


def schedule_of(train: int, heldout: int = 0, **options: Any) -> Schedule:
    blocks = CalibrationBlocks(torch.arange(train).view(train, 1), torch.zeros(heldout, 1))
    one = Schedule(blocks, epochs=1, batch_size=1, learning_rate=0.05, seed=5)
    return replace(one, **options)


def test_a_share_is_held_out_evenly_and_nothing_is_lost() -> None:
    sequences = torch.arange(64).view(64, 1)
    split = CalibrationBlocks.split(sequences)
    assert split.heldout.flatten().tolist() == [0, 21, 42, 63]
    assert sorted([*split.train.flatten().tolist(), 0, 21, 42, 63]) == list(range(64))
    sizes = {n: len(CalibrationBlocks.split(sequences[:n]).heldout) for n in (1, 2, 16)}
    assert sizes == {1: 0, 2: 1, 16: 1}
    assert CalibrationBlocks.split(sequences, apart=True).heldout.flatten().tolist() == [
        *range(60, 64)
    ]


def test_an_epoch_takes_every_sequence_once_in_an_order_of_its_own() -> None:
    schedule = schedule_of(10, epochs=3, batch_size=4)
    assert (schedule.steps_per_epoch, schedule.steps) == (3, 9)
    batches = [schedule.batch(step).flatten() for step in range(9)]
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    epochs = torch.cat(batches).view(3, 10).tolist()
    assert all(sorted(order) == list(range(10)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert schedule_of(10, batch_size=10, seed=6).batch(0).flatten().tolist() != epochs[0]


@pytest.mark.parametrize(("steps", "checks"), [(1, 2), (4, 5), (7, 5), (9, 5), (1920, 5)])
def test_masks_are_checked_at_both_ends_and_evenly_between(steps: int, checks: int) -> None:
    at = [step for step in range(steps + 1) if schedule_of(steps, 1).is_check(step)]
    assert at[0] == 0 and at[-1] == steps and len(at) == checks
    assert not any(schedule_of(steps).is_check(step) for step in range(steps + 1))


def test_a_cosine_takes_the_learning_rate_to_zero() -> None:
    rates = [schedule_of(8).rate(step) for step in range(9)]
    assert rates[0] == 0.05 and rates[4] == pytest.approx(0.025)
    assert rates[8] == pytest.approx(0) and rates == sorted(rates, reverse=True)
    assert schedule_of(8, cosine=False).rate(8) == 0.05
