"""Diagnostics of a plan: what the kept budget goes to, and the scores of what is kept."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.study.bench import cost_shares, mean_scores
from grasp_deploy.checkpoint.plan import Plan

SCORES = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, math.inf])
MASK = torch.tensor([True, False, True, True, True, False])
IS_KV = torch.tensor([False, False, False, True, True, True])
COSTS = torch.tensor([1.0, 1.0, 1.0, 3.0, 3.0, 3.0], dtype=torch.float64)


def test_shares_of_cost_and_mean_scores_are_those_of_the_kept_units_of_each_kind() -> None:
    plan = Plan(SCORES, MASK, torch.ones(6), {})
    assert cost_shares(plan, COSTS, IS_KV) == pytest.approx((0.25, 0.75))
    assert mean_scores(plan, IS_KV) == (2.5, 12.0)


def test_an_infinite_mean_is_not_recorded() -> None:
    assert mean_scores(Plan(SCORES, ~MASK, torch.ones(6), {}), IS_KV) == (2.0, None)
