"""The schedule: held-out sequences, order of batches, checks, averages and learning rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule

SCHEDULE = Schedule(epochs=1, batch_size=1, learning_rate=0.05, seed=5, select="best")


def blocks_of(train: int, heldout: int = 0) -> CalibrationBlocks:
    return CalibrationBlocks(torch.arange(train).view(train, 1), torch.zeros(heldout, 1))


def test_a_share_is_held_out_evenly_and_nothing_is_lost() -> None:
    sequences = torch.arange(64).view(64, 1)
    split = CalibrationBlocks.split(sequences)
    assert split.heldout.flatten().tolist() == [0, 21, 42, 63]
    assert sorted([*split.train.flatten().tolist(), 0, 21, 42, 63]) == list(range(64))
    sizes = {n: len(CalibrationBlocks.split(sequences[:n]).heldout) for n in (1, 2, 16)}
    assert sizes == {1: 0, 2: 1, 16: 1}


def test_an_epoch_takes_every_sequence_once_in_an_order_of_its_own() -> None:
    blocks = blocks_of(10)
    schedule = replace(SCHEDULE, epochs=3, batch_size=4)
    assert (schedule.steps_per_epoch(blocks), schedule.steps(blocks)) == (3, 9)
    epochs = []
    for epoch in range(3):
        batches = [schedule.batch(blocks, 3 * epoch + step) for step in range(3)]
        assert [len(batch) for batch in batches] == [4, 4, 2]
        epochs.append(torch.cat(batches).flatten().tolist())
    assert all(sorted(order) == list(range(10)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    other = replace(SCHEDULE, batch_size=10, seed=6)
    assert other.batch(blocks, 0).flatten().tolist() != epochs[0]


@pytest.mark.parametrize(("steps", "checks"), [(8, 9), (100, 17), (1920, 17)])
def test_masks_are_checked_at_both_ends_and_evenly_between(steps: int, checks: int) -> None:
    at = [step for step in range(steps + 1) if SCHEDULE.is_check(blocks_of(steps, 1), step)]
    assert at[0] == 0 and at[-1] == steps
    assert checks <= len(at) <= checks + 2
    assert not any(SCHEDULE.is_check(blocks_of(steps), step) for step in range(steps + 1))


@pytest.mark.parametrize(("steps", "averaged"), [(8, 2), (10, 3), (1, 1)])
def test_the_averaged_quarter_is_rounded_up(steps: int, averaged: int) -> None:
    schedule = replace(SCHEDULE, select="average")
    in_average = [schedule.is_averaged(blocks_of(steps), step) for step in range(1, steps + 1)]
    assert in_average == [False] * (steps - averaged) + [True] * averaged


def test_a_cosine_takes_the_learning_rate_to_zero() -> None:
    cosine = replace(SCHEDULE, cosine=True)
    rates = [cosine.rate(blocks_of(8), step) for step in range(9)]
    assert rates[0] == 0.05 and rates[4] == pytest.approx(0.025)
    assert rates[8] == pytest.approx(0) and rates == sorted(rates, reverse=True)
    assert SCHEDULE.rate(blocks_of(8), 8) == 0.05
