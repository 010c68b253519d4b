"""The tables of the benches that measure speed, from records alone."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from grasp_deploy.bench.gain_table import gain_table
from grasp_deploy.bench.throughput.table import serve_table, throughput_table
from tests.report.records import model, throughput_record

NAMES = ("llama-2-7b", "llama-2-7b-keep-0.6-multiple-64")


def lines_of(table: Table, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def row_of(lines: list[str], *words: str) -> str:
    return next(line for line in lines if all(word in line for word in words))


def record(cells: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    return {"models": [{"name": name} for name in NAMES], "settings": settings, "cells": cells}


def throughput_cell(model: str, batch: int, *seconds: float, joules: float | None = None) -> Any:
    samples = [
        {"seconds": s, "ttft_seconds": s / 4, "tpot_seconds": s / 400, "joules": joules}
        for s in seconds
    ]
    tokens = {"prompt_tokens": 2048, "new_tokens": 200}
    return {"model": model, "engine": "vllm", "batch": batch, **tokens, "samples": samples}


def test_throughput_has_medians_with_spread_and_paired_changes() -> None:
    dense = throughput_cell(NAMES[0], 8, 2.0, 4.0, 8.0)
    pruned = throughput_cell(NAMES[1], 8, 1.0, 2.0, 4.0)
    lines = lines_of(throughput_table(record([dense, pruned])))
    assert lines[0].strip() == "Throughput: vllm, 2,048 prompt and 200 new tokens"
    # 8 x 200 tokens in 4 s; half the range of 800, 400 and 200 tokens/s is 75 % of 400
    first = row_of(lines, "llama-2-7b ", "400 ±75%")
    assert "1,000 " in first and "10.0 " in first and first.count("%") == 1
    second = row_of(lines, "800 ±75%")
    assert "+100%" in second and second.count("-50%") == 2
    assert not any("J/token" in line for line in lines)


def test_throughput_shows_energy_where_it_was_measured_and_what_did_not_fit() -> None:
    cells = [
        throughput_cell(NAMES[0], 1, 2.0, joules=50.0),
        throughput_cell(NAMES[1], 1, 1.0, joules=20.0),
        throughput_cell(NAMES[0], 64),
        throughput_cell(NAMES[1], 64, 4.0),
    ]
    lines = lines_of(throughput_table(record(cells)))
    assert "0.25" in row_of(lines, "100", "llama-2-7b ") and "J/token" in lines[2]
    batches = [i for i, line in enumerate(lines) if "batch" in line]
    assert "batch 1 " in lines[batches[0]] and "batch 64 " in lines[batches[1]]
    assert "llama-2-7b " in lines[batches[1] + 1] and "does not fit" in lines[batches[1] + 1]
    alone = row_of(lines, "3,200")
    assert "%" not in alone, "one repetition has no spread, and nothing to be compared with"


def test_throughput_of_several_settings_says_which_is_which() -> None:
    other = {**throughput_cell(NAMES[0], 8, 1.0), "engine": "transformers"}
    lines = lines_of(throughput_table(record([throughput_cell(NAMES[0], 8, 2.0), other])))
    assert lines[0].strip() == "Throughput"
    text = " ".join(lines)
    assert text.count("batch 8") == 2 and "transformers" in text and "vllm" in text


def test_the_note_leads_to_where_changes_are_judged() -> None:
    made = throughput_record([model("dense"), model("pruned", 0.6)], batches=(1,))
    alone, in_report = throughput_table(made), record_tables(made)[0]
    assert str(alone.caption).endswith("whether it is more than noise: report")
    assert str(in_report.caption).endswith("whether it is more than noise: the next table")


@pytest.mark.parametrize(("repetitions", "verdict"), [(3, "within noise"), (1, "undecided")])
def test_of_the_ideal_nothing_is_said_in_doubt(repetitions: int, verdict: str) -> None:
    models = [model("dense"), model("pruned", 0.6)]
    shape: Any = {"batches": (8,), "repetitions": repetitions}
    for gain, verdicts in ((1.0, {verdict}), (1.3, {"faster", verdict})):
        made = throughput_record(models, gains={"pruned": gain}, noise=0.001, **shape)
        rows = [line for line in lines_of(gain_table(made)) if "batch 8" in line]
        for cells in ([cell.strip() for cell in row.split("│")[1:-1]] for row in rows):
            assert cells[-1] in verdicts and cells[3], "the ideal itself is there"
            assert bool(cells[4]) == (cells[-1] == "faster")


def serve_cell(model: str, at_once: int, rate: float, failed: int = 0, good: Any = None) -> Any:
    times = {"mean": 0.1, "p50": 0.09, "p90": 0.2, "p99": 0.4321}
    sample = {
        **{"completed": 500 - failed, "failed": failed, "output_tokens_per_second": rate},
        **{"ttft_seconds": times, "tpot_seconds": times, "e2e_seconds": times},
        "goodput_requests_per_second": good,
    }
    load = {"max_concurrency": at_once, "request_rate": None}
    return {"model": model, "load": load, "requests": 500, "samples": [sample]}


def test_serve_has_latencies_changes_and_failures() -> None:
    cells = [
        *(serve_cell(NAMES[0], 1, 100.0), serve_cell(NAMES[0], 32, 1000.0)),
        *(serve_cell(NAMES[1], 1, 125.0), serve_cell(NAMES[1], 32, 900.0, failed=3)),
    ]
    sizes = {"requests": 500, "prompt_tokens": 512, "new_tokens": 128}
    lines = lines_of(serve_table(record(cells, **sizes)))
    assert lines[0].strip() == "Load on the live server: 500 requests of 512 + 128 tokens"
    loads = [i for i, line in enumerate(lines) if "at once" in line]
    assert "1 request at once" in lines[loads[0]] and "32 requests at once" in lines[loads[1]]
    assert "+25%" in row_of(lines, "125") and "90.0/432" in row_of(lines, "125")
    assert "none" in row_of(lines, "125")
    assert "-10%" in row_of(lines, "900") and "3 of 500" in row_of(lines, "900")
    assert not any("good/s" in line for line in lines)


def test_goodput_is_shown_where_there_is_an_slo() -> None:
    for good, shown in ((1.25, "1.25"), (0.0, "0.00")):
        lines = lines_of(serve_table(record([serve_cell(NAMES[0], 1, 100.0, good=good)])))
        assert shown in row_of(lines, "llama-2-7b") and "good/s" in lines[2]


@pytest.mark.parametrize("width", [80, 100])
def test_no_figure_is_cut(width: int) -> None:
    cells = [
        throughput_cell(name, batch, 123.4, 125.0, 141.9, joules=9e4)
        for batch in (1, 64)
        for name in NAMES
    ]
    loads = [serve_cell(name, 128, 12345.6, failed=12, good=123.4) for name in NAMES]
    for table in (throughput_table(record(cells)), serve_table(record(loads))):
        lines = lines_of(table, width)
        assert not any("…" in line for line in lines)
        assert max(map(len, lines)) <= width
