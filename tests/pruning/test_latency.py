"""Prices of units from times of whole models, by hand."""

from __future__ import annotations

import pytest

from grasp_deploy.pruning.costs import latency_cost
from grasp_deploy.pruning.latency import fit_time
from grasp_deploy.pruning.units import UnitTable

# Of 10 s, FFN channels take 4, KV groups 2, and the rest 4.
LINE = [(0.5, 1.0, 8.0), (1.0, 0.5, 9.0), (0.5, 0.5, 7.0)]


def test_six_numbers_on_a_line_give_the_fixed_part_and_both_prices() -> None:
    time = fit_time(10.0, LINE)
    parts = time.fixed_seconds, time.ffn_seconds, time.kv_seconds
    assert parts == pytest.approx((4, 4, 2))
    assert time.largest_error == pytest.approx(0, abs=1e-12)
    assert time.seconds(0.25, 0.5) == pytest.approx(4 + 1 + 1)


def test_every_unit_of_a_kind_has_the_same_share_of_its_time() -> None:
    units = UnitTable.of_layers([(4, 2), (4, 2)])
    costs = latency_cost(units, fit_time(10.0, LINE))
    assert costs.tolist() == pytest.approx(([0.5e9] * 4 + [0.5e9] * 2) * 2)


def test_a_step_in_the_time_is_an_error_of_the_line() -> None:
    time = fit_time(10.0, [(0.5, 1.0, 8.0), (0.25, 1.0, 8.0)])  # a tile that stays busy
    price = (0.5 * 2 + 0.75 * 2) / (0.5**2 + 0.75**2)
    assert time.ffn_seconds == pytest.approx(price)
    assert time.largest_error == pytest.approx(abs(10 - 0.5 * price - 8) / 8)


def test_a_kind_that_would_have_a_negative_price_costs_nothing() -> None:
    time = fit_time(10.0, [(0.5, 1.0, 8.0), (1.0, 0.5, 10.5)])
    assert (time.ffn_seconds, time.kv_seconds) == (pytest.approx(4), 0)
    time = fit_time(10.0, [(0.5, 1.0, 11.0), (1.0, 0.5, 10.5)])
    assert (time.ffn_seconds, time.kv_seconds) == (0, 0)


def test_groups_that_were_never_fewer_have_no_price() -> None:
    time = fit_time(10.0, [(0.5, 1.0, 8.0), (0.25, 1.0, 7.0)])
    assert (time.ffn_seconds, time.kv_seconds) == (pytest.approx(4), pytest.approx(0))
