"""Figures in words."""

from grasp_deploy.stats import wording


def test_numbers() -> None:
    amounts = [wording.amount(value) for value in (0.0, 2.5e-7, 0.59864, 576, 1234567.8)]
    assert amounts == ["0", "2.5e-07", "0.59864", "576", "1,234,568"]
    assert wording.span([1.1, 1.42], ".2f", "x") == "1.10x to 1.42x"
    assert wording.span([1.101, 1.099], ".1f", "x") == "1.1x"
    assert wording.plus_minus(0.0213, 0.003, ".3f") == "0.021 ± 0.003"
    assert wording.plus_minus(0.5, None, ".1f", "+") == "+0.5"
    assert wording.listed([1, 2000, "all"]) == "1, 2,000 and all"
    assert [wording.counted(n, "row") for n in (1, 2000)] == ["1 row", "2,000 rows"]
