"""The tables of a quality card fit a terminal, and values of all types have their own."""

from typing import Any

from rich.table import Table

from grasp_deploy.report.tables import card_tables, figure_table, provenance_table, value_table
from tests.bench.records import lines_of, record
from tests.evaluate.quality.rows import corpus, task


def test_a_row_of_a_corpus_is_one_line_of_80_columns() -> None:
    marked = corpus("mine.jsonl", 0.0953102, True, error=0.004)
    quality = {"corpora": [corpus("c4", 0.2), marked], "tasks": [task("piqa", 0.8, 0.7)]}
    lines = [line for table in card_tables(quality) for line in lines_of(table, width=80)]
    (row,) = (line for line in lines if "mine.jsonl" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    # exp(0.0953102) is 1.1.
    told = ["20,470 (2,048 each)", "8.00", "8.80", "0.095 ± 0.004"]
    assert cells == ["mine.jsonl (test)†", *told]
    assert any("nats lost" in line for line in lines)
    assert any(line.startswith("† The model learnt from this corpus") for line in lines)


def test_a_narrow_terminal_cuts_no_name_and_no_figure() -> None:
    row = ("stories260K", "12.589", "2.533 ± 0.013", "0.339")
    table = figure_table("", ("model", "perplexity", "nats", "KL"))
    table.add_row(*row)
    lines = [line.strip("│").split("│") for line in lines_of(table, width=30) if "│" in line]
    drawn = ["".join(column).replace(" ", "") for column in zip(*lines, strict=True)]
    assert drawn == [cell.replace(" ", "") for cell in row]


def cells_of(table: Table) -> dict[str, str]:
    names, values = (map(str, column.cells) for column in table.columns)
    return dict(zip(names, values, strict=True))


def test_values_of_every_type() -> None:
    made: dict[str, Any] = {
        "seconds_per_step": {"median": 0.5, "samples": [i / 9 for i in range(20)]},
        **{"ok": True, "rows": [{}, {}], "counts": [1, 2000], "none": [], "missing": None},
    }
    assert cells_of(value_table("made up", made)) == {
        "seconds per step, median": "0.5",
        "seconds per step, samples": "20 values, median 1.05556",
        **{"ok": "yes", "rows": "2 entries", "counts": "1, 2,000", "none": ""},
    }
    found = cells_of(provenance_table(record("made-up", [])))
    assert found["machine, cores"] == "16" and found["settings, seed"] == "0"
