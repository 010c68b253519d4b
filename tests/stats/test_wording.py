"""Figures in words."""

from __future__ import annotations

from grasp_deploy.stats.wording import (
    common_outcome,
    counted,
    grouped,
    listed,
    memory_size,
    plus_minus,
    points_by_outcome,
    span,
)


def test_numbers() -> None:
    assert span([1.1, 1.42], ".2f", "x") == "1.10x to 1.42x"
    assert span([1.101, 1.099], ".1f", "x") == "1.1x"
    assert plus_minus(0.0213, 0.003, ".3f") == "0.021 ± 0.003"
    assert plus_minus(0.5, None, ".1f", "+") == "+0.5"
    assert listed([1, 2000, "all"]) == "1, 2,000 and all"
    assert (counted(1, "request"), counted(2000, "request")) == ("1 request", "2,000 requests")
    assert (memory_size(2**29), memory_size(2**30)) == ("512.0 MiB", "1.00 GiB")


def test_outcomes_and_groups() -> None:
    assert points_by_outcome([("faster", 1)]) == "faster"
    assert points_by_outcome([("faster", 1), ("faster", 4)]) == "faster at each"
    mixed = [("faster", 4), ("slower", 1), ("faster", 8)]
    assert points_by_outcome(mixed) == "faster at 4 and 8, slower at 1"
    assert common_outcome(["slower", "slower"]) == "slower"
    assert common_outcome(["slower", "faster"]) == "mixed"
    assert grouped(["b1", "a1", "b2"], lambda name: name[0]) == [["b1", "b2"], ["a1"]]
