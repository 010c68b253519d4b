"""Tables of a study: means over seeds, and rows that fit a terminal."""

from functools import partial

from benchmarks.study.tables import (
    accuracy_tables,
    kept_table,
    quality_tables,
)
from tests.bench.records import lines_of
from tests.benchmarks.study.records import study, with_tasks

TWO = {"piqa": "acc_norm", "winogrande": "acc"}


drawn = partial(lines_of, width=80)


def cells_of(lines: list[str], first: str) -> list[list[str]]:
    """The cells of all rows that begin so."""
    rows = ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines)
    return [row for row in rows if row and row[0] == first]


def title_of(lines: list[str]) -> str:
    return words_of(lines).split("┏")[0].strip()


def words_of(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_perplexity_is_the_mean_over_seeds_with_half_their_range() -> None:
    tables = quality_tables(study(corpora=("c4", "ptb")))
    lines, others, _ = map(drawn, tables)
    assert title_of(lines) == "Perplexity by budget: study of methods, c4"
    assert title_of(others).endswith(", ptb")
    assert "means over 2 seeds ± half their range" in words_of(lines)
    (heads,) = ([cell.strip() for cell in line.split("┃")[1:-1]] for line in lines if "┃" in line)
    assert heads == ["variant", "0.8", "0.5"]
    assert cells_of(lines, "dense") == [["dense", "8.00", "8.00"]]
    # 8 exp(0.02) and 8 exp(0.04) are 8.1616 and 8.3265; 8 exp(0.2), 8 exp(0.3): 9.7712, 10.7989;
    # 8 exp(0.1): 8.8414; 8 exp(0.9), 8 exp(1.1): 19.6768, 24.0333
    assert cells_of(lines, "default") == [["default", "8.24 ±0.08", "10.29 ±0.51"]]
    assert cells_of(lines, "flap") == [["flap", "8.84 ±0.00", "21.86 ±2.18"]]


def test_the_excess_is_the_mean_over_texts_and_the_worst_of_them() -> None:
    made = study({"own": {0.8: [0.1, 0.3], 0.5: [0.5]}, "none": {0.8: [0.2]}}, ("c4", "ptb"))
    for row in made.rows:
        row.excess_nats["ptb"] = row.excess_nats["c4"] - 0.2
    lines = drawn(quality_tables(made)[-1])
    assert "nats per token above the dense model's over c4 and ptb; means over" in words_of(lines)
    # means 0 and 0.2 over seeds, worst 0.1 and 0.3
    assert cells_of(lines, "own") == [["own", "+0.100", "+0.400"]]
    assert cells_of(lines, "") == [["", "+0.200", "+0.500"], ["", "+0.200", ""]]
    assert cells_of(lines, "none") == [["none", "+0.100", "-"]]
    assert len(quality_tables(study())) == 1, "of one text its own table says all"
    for row in made.rows:
        row.divergence = {"c4": 0.4, "ptb": 0.1 + row.seed}
    lines = drawn(quality_tables(made)[-1])
    assert "third line: mean divergence from it" in words_of(lines)
    # 0.25 and 0.75 by seed
    assert cells_of(lines, "")[1::2] == [["", "0.500", "0.250"], ["", "0.250", ""]]


def test_what_is_kept_by_count_and_the_seconds_in_all() -> None:
    lines = drawn(kept_table(study()))
    budgets = [line.split("│")[1].strip() for line in lines if "keep " in line]
    assert budgets == ["keep 0.8", "keep 0.5"]
    # 16 and 18 of 30 channels, 6 of 8 groups; 15.5 and 17.5 s
    rows = cells_of(lines, "default")
    assert rows == [["default", cost, "56.7%", "75.0%", "16.5"] for cost in ("80.0%", "50.0%")]


def test_accuracies_by_variant_and_budget_with_the_dense_model_first() -> None:
    assert accuracy_tables(study()) == []
    record = with_tasks(study(), TWO, [0.7, 0.5, 0.6])
    record.settings["task_limit"] = 20
    lines = drawn(accuracy_tables(record)[0])
    assert title_of(lines) == "Accuracy on tasks, %: study of methods"
    # 0.03 of two tasks: 0.03 / sqrt(2) of their average
    assert cells_of(lines, "dense") == [["dense", "70.0 ± 3.0", "80.0 ± 3.0", "75.0 ± 2.1"]]
    # 50 and 60 over two seeds on the same items, whose error is that of one seed
    assert cells_of(lines, "default") == [["default", "55.0 ± 3.0", "65.0 ± 3.0", "60.0 ± 2.1"]]
    assert cells_of(lines, "flap") == [], "it has run none"
    for words in (
        "acc_norm where a task has it, else acc",
        "acc_norm: piqa; acc: winogrande",
        "unweighted, as in the paper",
        "means over seeds",
        "only the first 20 items of each task",
    ):
        assert words in words_of(lines), words
