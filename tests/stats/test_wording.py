"""Figures in words."""

from __future__ import annotations

from grasp_deploy.stats import wording


def test_numbers() -> None:
    assert wording.span([1.1, 1.42], ".2f", "x") == "1.10x to 1.42x"
    assert wording.span([1.101, 1.099], ".1f", "x") == "1.1x"
    assert wording.plus_minus(0.0213, 0.003, ".3f") == "0.021 ± 0.003"
    assert wording.plus_minus(0.5, None, ".1f", "+") == "+0.5"
    assert wording.listed([1, 2000, "all"]) == "1, 2,000 and all"
    assert [wording.counted(n, "row") for n in (1, 2000)] == ["1 row", "2,000 rows"]


def test_outcomes_and_groups() -> None:
    assert wording.points_by_outcome([("faster", 1)]) == "faster"
    assert wording.points_by_outcome([("faster", 1), ("faster", 4)]) == "faster at each"
    mixed = [("faster", 4), ("slower", 1), ("faster", 8)]
    assert wording.points_by_outcome(mixed) == "faster at 4 and 8, slower at 1"
    assert wording.common_outcome(["slower", "slower"]) == "slower"
    assert wording.common_outcome(["slower", "faster"]) == "mixed"
    assert wording.grouped(["b1", "a1", "b2"], lambda name: name[0]) == [["b1", "b2"], ["a1"]]
