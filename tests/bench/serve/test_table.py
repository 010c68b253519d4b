"""The table of a serve record."""

from __future__ import annotations

from typing import Any

from grasp_deploy.bench.serve.table import serve_table
from tests.bench.records import lines_of, model, record, row_of, served, typed

NAMES = ("llama-2-7b", "llama-2-7b-keep-0.6-multiple-64")


def cell(name: str, at_once: int, rate: float, failed: int = 0) -> dict[str, Any]:
    load = {"max_concurrency": at_once, "request_rate": None}
    samples = [{**served(rate, failed), "goodput_requests_per_second": 1.25}]
    return {"model": name, "load": load, "requests": 500, "samples": samples}


def lines(*cells: dict[str, Any], width: int = 100, **settings: Any) -> list[str]:
    document = record("serve", [model(name) for name in NAMES], cells=list(cells))
    document["settings"] |= settings
    return lines_of(serve_table(typed(document)), width)


def test_latencies_changes_and_failures() -> None:
    drawn = lines(
        *(cell(NAMES[0], 1, 100.0), cell(NAMES[0], 32, 1000.0)),
        *(cell(NAMES[1], 1, 125.0), cell(NAMES[1], 32, 900.0, failed=3)),
    )
    assert drawn[0].strip() == "Load on the live server: 500 requests of 512 + 128 tokens"
    assert row_of(drawn, "1 request at once") and row_of(drawn, "32 requests at once")
    assert "100/270" in row_of(drawn, "125", "+25%", "none")
    assert row_of(drawn, "900", "-10%", "3 of 500")
    assert not any("good/s" in line for line in drawn)


def test_goodput_where_there_is_an_slo() -> None:
    drawn = lines(cell(NAMES[0], 1, 100.0), slo_ms={"ttft": 200.0})
    assert "1.25" in row_of(drawn, "llama-2-7b") and "good/s" in drawn[2]


def test_a_server_that_answered_nothing_is_still_drawn_and_no_figure_is_cut() -> None:
    cells = cell(NAMES[0], 1, 0.0, failed=500), cell(NAMES[1], 1, 12345.6, failed=12)
    assert row_of(lines(*cells, width=80, slo_ms={"ttft": 1.0}), "500 of 500")
