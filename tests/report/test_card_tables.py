"""The tables of a quality card fit a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from grasp_deploy.report.card_tables import card_tables
from tests.evaluate.quality.rows import corpus, task


def printed(width: int) -> list[str]:
    marked = corpus("mine.jsonl", 0.0953102, True, error=0.004)
    quality = {"corpora": [corpus("c4", 0.2), marked], "tasks": [task("piqa", 0.8, 0.7)]}
    text = io.StringIO()
    console = Console(file=text, width=width)
    for table in card_tables(quality):
        console.print(table)
    return text.getvalue().splitlines()


def test_a_row_of_a_corpus_is_one_line_of_80_columns() -> None:
    lines = printed(80)
    assert max(map(len, lines)) <= 80
    (row,) = (line for line in lines if "mine.jsonl" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    # exp(0.0953102) is 1.1.
    told = ["20,470 (2,048 each)", "8.00", "8.80", "0.095 ± 0.004"]
    assert cells == ["mine.jsonl (test)†", *told]
    assert any("nats lost" in line for line in lines)
    assert any(line.startswith("† The model was calibrated on this corpus") for line in lines)
