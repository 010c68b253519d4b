"""The table of a serve record."""

from __future__ import annotations

from typing import Any

from grasp_deploy.bench.serve.table import serve_table
from tests.bench.records import lines_of, model, record, row_of, typed

NAMES = ("llama-2-7b", "llama-2-7b-keep-0.6-multiple-64")


def cell(
    name: str, at_once: int, rate: float, failed: int = 0, good: float | None = None
) -> dict[str, Any]:
    times = {"mean": 0.1, "p50": 0.09, "p90": 0.2, "p99": 0.4321}
    latencies = dict.fromkeys(("ttft", "tpot", "itl", "e2e"), times)
    sample = {
        **{"completed": 500 - failed, "failed": failed, "output_tokens_per_second": rate},
        **{"seconds": 1.0, "requests_per_second": 1.0, "output_tokens": 64_000},
        **{f"{name}_seconds": seconds for name, seconds in latencies.items()},
        "goodput_requests_per_second": good,
    }
    load = {"max_concurrency": at_once, "request_rate": None}
    return {"model": name, "load": load, "requests": 500, "samples": [sample]}


def lines(cells: list[dict[str, Any]], width: int = 100) -> list[str]:
    document = record("serve", [model(name) for name in NAMES], cells=cells)
    return lines_of(serve_table(typed(document)), width)


def test_latencies_changes_and_failures() -> None:
    drawn = lines(
        [
            *(cell(NAMES[0], 1, 100.0), cell(NAMES[0], 32, 1000.0)),
            *(cell(NAMES[1], 1, 125.0), cell(NAMES[1], 32, 900.0, failed=3)),
        ]
    )
    assert drawn[0].strip() == "Load on the live server: 500 requests of 512 + 128 tokens"
    loads = [i for i, line in enumerate(drawn) if "at once" in line]
    assert "1 request at once" in drawn[loads[0]] and "32 requests at once" in drawn[loads[1]]
    assert "+25%" in row_of(drawn, "125") and "90.0/432" in row_of(drawn, "125")
    assert "none" in row_of(drawn, "125")
    assert "-10%" in row_of(drawn, "900") and "3 of 500" in row_of(drawn, "900")
    assert not any("good/s" in line for line in drawn)


def test_goodput_where_there_is_an_slo() -> None:
    for good, shown in ((1.25, "1.25"), (0.0, "0.00")):
        drawn = lines([cell(NAMES[0], 1, 100.0, good=good)])
        assert shown in row_of(drawn, "llama-2-7b") and "good/s" in drawn[2]


def test_a_server_that_answered_nothing_is_still_drawn() -> None:
    drawn = lines([cell(NAMES[0], 1, 0.0, failed=500), cell(NAMES[1], 1, 10.0)])
    assert "500 of 500" in row_of(drawn, "llama-2-7b ")


def test_no_figure_is_cut() -> None:
    drawn = lines([cell(name, 128, 12345.6, failed=12, good=123.4) for name in NAMES], width=80)
    assert not any("…" in line for line in drawn) and max(map(len, drawn)) <= 80
