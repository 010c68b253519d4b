"""A ranking: values of learnt scores, their mask, and the order of units."""

from __future__ import annotations

import torch
from grasp_deploy.pruning.ranking import Ranking

from grasp_deploy.pruning.budget import make_budget
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable

BUDGET = make_budget(UnitTable.of_layers([(3, 2)]), torch.tensor([2.0, 2, 2, 1, 4]), 7)
SCORES = torch.tensor([0.0, 3, 2, -1, 1])  # p: 0.5, 0.95, 0.88, 0.27, 0.73 at temperature 1


def test_ranking_by_cost_divides_the_probability_by_the_cost() -> None:
    by_score, by_cost = (Ranking.of_scores(SCORES, BUDGET, 1.0, flag) for flag in (False, True))
    assert by_score.mask.tolist() == [0, 1, 0, 0, 1]
    assert by_score.order.tolist() == [1, 2, 4, 0, 3]
    assert by_cost.mask.tolist() == [1, 1, 1, 1, 0]
    assert by_cost.order.tolist() == [1, 2, 3, 0, 4]


def test_values_of_any_size_are_ranked_as_they_are() -> None:
    ranking = Ranking.of_values(1000 * SCORES, BUDGET)
    assert torch.equal(ranking.mask, project(1000 * SCORES, BUDGET))
    assert torch.equal(ranking.values, 1000 * SCORES)
