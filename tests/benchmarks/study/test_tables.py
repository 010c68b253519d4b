"""Tables of a study: means over seeds, and rows that fit a terminal."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.study.tables import budget_tables, kept_table, quality_tables, seeds_in_words
from tests.benchmarks.study.records import Losses, study, with_allocation

ONE_SEED: Losses = {"default": {keep: [0.1] for keep in (0.4, 0.8, 0.6, 0.5)}}


def drawn(table: Table, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def cells_of(lines: list[str], first: str) -> list[list[str]]:
    """The cells of all rows that begin so."""
    rows = ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines)
    return [row for row in rows if row and row[0] == first]


def title_of(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split("┏")[0].split())


def test_a_variant_of_one_seed_among_others_of_more_is_told() -> None:
    uneven: Losses = {"default": {0.5: [0.2, 0.3, 0.4]}, "flap": {0.5: [0.9]}}
    lines = drawn(quality_tables(study(uneven))[0])
    assert "means over 3 seeds ± half their range; without ±: one seed" in " ".join(
        " ".join(lines).split()
    )
    assert "±" in cells_of(lines, "default")[0][1] and "±" not in cells_of(lines, "flap")[0][1]
    assert seeds_in_words(study(uneven)) == "mean and range of 1 to 3 seeds"


def test_perplexity_is_the_mean_over_seeds_with_half_their_range() -> None:
    (table,) = quality_tables(study())
    lines = drawn(table)
    assert title_of(lines) == "Perplexity by budget: study of methods, c4"
    assert "means over 2 seeds ± half their range" in " ".join(" ".join(lines).split())
    (heads,) = ([cell.strip() for cell in line.split("┃")[1:-1]] for line in lines if "┃" in line)
    assert heads == ["variant", "0.8", "0.5"]
    assert cells_of(lines, "dense") == [["dense", "8.00", "8.00"]]
    # 8 exp(0.02) and 8 exp(0.04) are 8.1616 and 8.3265; 8 exp(0.2), 8 exp(0.3): 9.7712, 10.7989;
    # 8 exp(0.1): 8.8414; 8 exp(0.9), 8 exp(1.1): 19.6768, 24.0333
    assert cells_of(lines, "default") == [["default", "8.24 ±0.08", "10.29 ±0.51"]]
    assert cells_of(lines, "flap") == [["flap", "8.84 ±0.00", "21.86 ±2.18"]]


def test_what_was_not_measured_is_empty_and_one_seed_has_no_range() -> None:
    (table,) = quality_tables(study({"a": {0.8: [0.0], 0.5: [0.0]}, "b [red]": {0.8: [0]}}))
    lines = drawn(table)
    assert cells_of(lines, "b [red]") == [["b [red]", "8.00", ""]]
    assert not any("±" in line for line in lines)


def test_each_corpus_has_its_table() -> None:
    tables = [drawn(table) for table in quality_tables(study(ONE_SEED, ("wikitext2", "c4")))]
    assert [title_of(lines).split(", ")[-1] for lines in tables] == ["wikitext2", "c4"]
    for lines in tables:
        assert cells_of(lines, "default") == [["default", *["8.84"] * 4]]


def test_a_broken_model_breaks_no_table() -> None:
    nats = math.log(5e6)
    (table,) = quality_tables(study({"random": {0.8: [nats, nats], 0.5: [5.0, 6.0]}}))
    # 8 exp(5) and 8 exp(6) are 1187.3 and 3227.4
    assert cells_of(drawn(table), "random") == [["random", "4.0e+07", "2,207 ±1,020"]]


def test_what_is_kept_by_count_and_the_seconds_in_all() -> None:
    lines = drawn(kept_table(study()))
    budgets = [line.split("│")[1].strip() for line in lines if "keep " in line]
    assert budgets == ["keep 0.8", "keep 0.5"]
    # 16 and 18 of 30 channels, 6 of 8 groups; 15.5 and 17.5 s
    rows = cells_of(lines, "default")
    assert rows == [["default", cost, "56.7%", "75.0%", "16.5"] for cost in ("80.0%", "50.0%")]


def test_what_the_kept_budget_goes_to_where_rows_say_so() -> None:
    made = study()
    assert budget_tables(made) == []
    # rows: default at 0.8 with two seeds, at 0.5 with two; flap likewise
    with_allocation(made.rows[0], 0.5, (2.0, 1e-5))
    with_allocation(made.rows[1], 0.7, (3.0, None))
    with_allocation(made.rows[6], 1.0, (-0.125, None))
    lines = drawn(budget_tables(made)[0])
    unknown = ["-", "-", "-", "-"]
    assert cells_of(lines, "default") == [
        ["default", "60.0%", "40.0%", "2.5", "1e-05"],
        ["default", *unknown],
    ]
    assert cells_of(lines, "flap") == [
        ["flap", *unknown],
        ["flap", "100.0%", "0.0%", "-0.125", ""],
    ]
    assert "-: not recorded" in " ".join(" ".join(lines).split())
    for row in made.rows:
        with_allocation(row, 0.5, (1.0, 1.0))
    assert "not recorded" not in " ".join(drawn(budget_tables(made)[0]))


@pytest.mark.parametrize("variant", ["wanda-structured, compensated", "x" * 70])
def test_no_figure_is_cut(variant: str) -> None:
    made = study({variant: {keep: [0.5, 6.0] for keep in (0.8, 0.6, 0.5, 0.4)}})
    for row in made.rows:
        with_allocation(row, 1 / 3, (-1.2345e-10, 12345.6))
    for table in (*quality_tables(made), kept_table(made), *budget_tables(made)):
        lines = drawn(table)
        assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
