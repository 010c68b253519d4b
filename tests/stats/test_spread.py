"""Median and quartiles."""

from __future__ import annotations

from grasp_deploy.stats.spread import quartiles, spread


def test_quartiles() -> None:
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == (2.0, 3.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)
    expected = {"median": 2.0, "quartiles": [1.5, 2.5], "samples": [1.0, 2.0, 3.0]}
    assert spread([1.0, 2.0, 3.0]) == expected
