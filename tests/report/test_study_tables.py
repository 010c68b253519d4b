"""The tables of a study: means over seeds, and no wider than a terminal."""

from __future__ import annotations

import io
import math

import pytest
from grasp_deploy.report.study_tables import (
    budget_tables,
    kept_table,
    quality_tables,
    seeds_in_words,
)
from rich.console import Console
from rich.table import Table

from tests.report.study_records import Losses, study_record, with_allocation

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
    lines = drawn(quality_tables(study_record(uneven))[0])
    assert "means over 3 seeds ± half their range; without ±: one seed" in " ".join(
        " ".join(lines).split()
    )
    assert "±" in cells_of(lines, "default")[0][1] and "±" not in cells_of(lines, "flap")[0][1]
    assert seeds_in_words(study_record(uneven)) == "mean and range of 1 to 3 seeds"


def test_perplexity_is_the_mean_over_seeds_with_half_their_range() -> None:
    (table,) = quality_tables(study_record())
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
    (table,) = quality_tables(study_record({"a": {0.8: [0.0], 0.5: [0.0]}, "b [red]": {0.8: [0]}}))
    lines = drawn(table)
    assert cells_of(lines, "b [red]") == [["b [red]", "8.00", ""]]
    assert not any("±" in line for line in lines)


def test_corpora_stand_in_one_table_where_it_fits_and_in_their_own_where_not() -> None:
    (both,) = quality_tables(study_record(corpora=("c4", "ptb")))
    (row,) = cells_of(drawn(both), "default")
    assert row == ["default", "8.24 ±0.08", "8.24 ±0.08", "10.29 ±0.51", "10.29 ±0.51"]
    wide = study_record(ONE_SEED, corpora=("wikitext2", "c4"))
    tables = [drawn(table) for table in quality_tables(wide)]
    assert [title_of(lines).split(", ")[-1] for lines in tables] == ["wikitext2", "c4"]
    for lines in tables:
        assert max(map(len, lines)) <= 80
        assert cells_of(lines, "default") == [["default", *["8.84"] * 4]]


def test_a_broken_model_breaks_no_table() -> None:
    nats = math.log(5e6)
    (table,) = quality_tables(study_record({"random": {0.8: [nats, nats], 0.5: [5.0, 6.0]}}))
    # 8 exp(5) and 8 exp(6) are 1187.3 and 3227.4
    assert cells_of(drawn(table), "random") == [["random", "4.0e+07", "2,207 ±1,020"]]


def test_what_is_kept_by_count_and_the_seconds_in_all() -> None:
    lines = drawn(kept_table(study_record()))
    budgets = [line.split("│")[1].strip() for line in lines if "keep " in line]
    assert budgets == ["keep 0.8", "keep 0.5"]
    # 16 and 18 of 30 channels, 6 of 8 groups; 15.5 and 17.5 s
    rows = cells_of(lines, "default")
    assert rows == [["default", cost, "56.7%", "75.0%", "16.5"] for cost in ("80.0%", "50.0%")]


def test_what_the_kept_budget_goes_to_where_rows_tell() -> None:
    record = study_record()
    assert budget_tables(record) == []
    # rows: default at 0.8 with two seeds, at 0.5 with two; flap likewise
    with_allocation(record["rows"][0], 0.5, (2.0, 1e-5))
    with_allocation(record["rows"][1], 0.7, (3.0, None))
    with_allocation(record["rows"][6], 1.0, (-0.125, None))
    (table,) = budget_tables(record)
    lines = drawn(table)
    # at 0.8, then at 0.5: the other rows are older
    untold = ["-", "-", "-", "-"]
    assert cells_of(lines, "default") == [
        ["default", "60.0%", "40.0%", "2.5", "1e-05"],
        ["default", *untold],
    ]
    assert cells_of(lines, "flap") == [["flap", *untold], ["flap", "100.0%", "0.0%", "-0.125", ""]]
    assert max(map(len, lines)) <= 80
    assert "-: older rows, which do not tell it" in " ".join(" ".join(lines).split())
    for row in record["rows"]:
        with_allocation(row, 0.5, (1.0, 1.0))
    assert "older rows" not in " ".join(drawn(budget_tables(record)[0]))


@pytest.mark.parametrize("variant", ["wanda-structured, compensated", "x" * 70])
def test_no_figure_is_cut(variant: str) -> None:
    losses = {variant: {keep: [0.5, 6.0] for keep in (0.8, 0.6, 0.5, 0.4)}}
    record = study_record(losses, corpora=("wikitext2", "c4"))
    for row in record["rows"]:
        with_allocation(row, 1 / 3, (-1.2345e-10, 12345.6))
    for table in (*quality_tables(record), kept_table(record), *budget_tables(record)):
        lines = drawn(table)
        assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
