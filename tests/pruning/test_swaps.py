"""Swaps at the cut, with rankings and losses that are written down."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.budget import Budget, make_budget
from grasp_deploy.pruning.projection import Ranking
from grasp_deploy.pruning.swaps import groups_near_the_cut, try_swaps
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import generator

# Two layers of six FFN channels of cost 1 and three KV groups of cost 3: 0-5, 6-8; 9-14, 15-17.
UNITS = UnitTable.of_layers([(6, 3)] * 2)
COSTS = torch.where(UNITS.is_kv, 3.0, 1.0)
BUDGET = make_budget(UNITS, COSTS, 17.0)  # of 30
# Kept: groups 7, 6 and 15, and the eight best channels. The next at the cut are three channels.
RANKING = torch.tensor(
    [
        *(0.9, 0.8, 0.7, 0.6, 0.52, 0.5),
        *(0.85, 0.95, 0.4),
        *(0.9, 0.8, 0.7, 0.6, 0.51, 0.3),
        *(0.75, 0.45, 0.1),
    ]
)


def ranked(budget: Budget = BUDGET) -> Ranking:
    return Ranking(RANKING, budget)


def test_many_swaps_of_a_large_model_are_taken() -> None:
    """Every swap lowers the loss; float32 rankings must not run out of numbers for them."""
    units = UnitTable.of_layers([(1376, 8)] * 10)
    costs = torch.where(units.is_kv, 43.0, 1.0)
    budget = make_budget(units, costs, 0.6 * float(costs.sum()))
    ranking = Ranking(torch.rand(units.size, generator=generator(0)), budget)
    groups = groups_near_the_cut(ranking, 10)
    losses = iter(range(100, 0, -1))
    swaps = list(try_swaps(ranking, groups, lambda _mask: float(next(losses))))
    assert sum(swap.accepted for swap in swaps) >= 15


def test_groups_come_nearest_first_kept_and_removed_by_turns() -> None:
    assert ranked().mask[UNITS.is_kv].tolist() == [True, True, False, True, False, False]
    assert groups_near_the_cut(ranked(), 1) == [15, 16]
    assert groups_near_the_cut(ranked(), 2) == [15, 16, 6, 8]
    assert groups_near_the_cut(ranked(), 9) == [15, 16, 6, 8, 7, 17]


def test_last_groups_and_groups_that_cost_nothing_do_not_move() -> None:
    units = UnitTable.of_layers([(6, 3), (6, 1)])
    budget = make_budget(units, torch.where(units.is_kv, 3.0, 1.0), 17.0)
    assert groups_near_the_cut(Ranking(RANKING[:16], budget), 3) == [6, 8, 7]
    ffn_alone = make_budget(UNITS, torch.where(UNITS.is_kv, 0.0, 1.0), 6.0)
    assert groups_near_the_cut(ranked(ffn_alone), 4) == []


def test_swaps_build_upon_those_before_them_and_channels_make_room() -> None:
    """A channel is worth 0.1 nats, a group as given. Out goes 6, in comes 8 for four channels."""
    worths, asked = torch.where(UNITS.is_kv, 0.0, 0.1), []
    worths[[7, 15, 8]] = torch.tensor([5.0, 5.0, 1.0])

    def loss_of(mask: Tensor) -> float:
        asked.append(mask)
        assert BUDGET.cost_of(mask) <= BUDGET.limit
        return float(worths[~mask].sum())

    groups = groups_near_the_cut(ranked(), 2)
    swaps = list(try_swaps(ranked(), groups, loss_of))
    assert [swap.unit for swap in swaps] == groups
    assert torch.equal(asked[0], ranked().mask)
    assert len(asked) == 1 + sum(swap.loss is not None for swap in swaps)
    accepted = [swap for swap in swaps if swap.accepted]
    assert [(swap.unit, swap.keeps) for swap in accepted] == [(6, False), (8, True)]
    assert [swap.loss for swap in accepted] == pytest.approx([1.1, 0.4])
    assert accepted[-1].mask[UNITS.kv(0)].tolist() == [False, True, True]
    assert BUDGET.cost_of(accepted[-1].mask) == 17


def test_a_loss_that_is_no_number_is_no_improvement() -> None:
    groups = groups_near_the_cut(ranked(), 3)
    losses = iter([1.0, *[math.nan] * len(groups)])
    swaps = list(try_swaps(ranked(), groups, lambda _: next(losses)))
    assert not any(swap.accepted for swap in swaps)
    assert torch.equal(swaps[-1].mask, ranked().mask)


@pytest.mark.parametrize("multiples", [(1, 1), (3, 2)])
def test_budget_and_multiples_hold_after_every_swap(multiples: tuple[int, int]) -> None:
    """Losses fall at every question, so that all that can be swapped is."""
    units = UnitTable.of_layers([(12, 4)] * 3)
    costs = torch.where(units.is_kv, 2.5, 1.0)
    ffn, kv = multiples
    budget = make_budget(units, costs, 33.0, ffn_multiple=ffn, kv_multiple=kv)
    ranking = Ranking(torch.rand(units.size, generator=generator(0)), budget)
    groups = groups_near_the_cut(ranking, 4)
    losses = iter(range(100, 0, -1))
    masks = [ranking.mask]
    for swap in try_swaps(ranking, groups, lambda _: next(losses)):
        assert swap.accepted == (swap.loss is not None)
        assert swap.accepted != torch.equal(swap.mask, masks[-1])
        assert not swap.accepted or bool(swap.mask[swap.unit]) == swap.keeps
        assert budget.cost_of(swap.mask) <= budget.limit
        for channels, kept_groups in units.kept_per_layer(swap.mask):
            assert channels >= ffn and channels % ffn == 0
            assert kept_groups >= kv and kept_groups % kv == 0
        masks.append(swap.mask)
    assert len({tuple(mask.tolist()) for mask in masks}) > 1
