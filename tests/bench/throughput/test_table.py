"""The tables of a throughput record."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.bench.throughput.table import gain_table, throughput_table
from tests.bench.records import lines_of, model, record, row_of, throughput_record, typed

NAMES = ("llama-2-7b", "llama-2-7b-keep-0.6-multiple-64")


def lines(*cells: dict[str, Any]) -> list[str]:
    document = record("throughput", [model(name) for name in NAMES], cells=list(cells))
    document["settings"] |= {"prompt_tokens": 2048, "new_tokens": 200}
    return lines_of(throughput_table(typed(document)))


def cell(name: str, batch: int, *seconds: float, joules: float | None = None) -> dict[str, Any]:
    samples = [
        {"seconds": s, "ttft_seconds": s / 4, "tpot_seconds": s / 400, "joules": joules}
        for s in seconds
    ]
    tokens = {"prompt_tokens": 2048, "new_tokens": 200}
    return {"model": name, "engine": "vllm", "batch": batch, **tokens, "samples": samples}


def test_medians_with_spread_and_paired_changes() -> None:
    drawn = lines(cell(NAMES[0], 8, 2.0, 4.0, 8.0), cell(NAMES[1], 8, 1.0, 2.0, 4.0))
    assert drawn[0].strip() == "Throughput: vllm, 2,048 prompt and 200 new tokens"
    # 8 x 200 tokens in 4 s; half the range of 800, 400 and 200 tokens/s is 75 % of 400
    first = row_of(drawn, "llama-2-7b ", "400 ±75%")
    assert "1,000 " in first and "10.0 " in first and first.count("%") == 1
    second = row_of(drawn, "800 ±75%")
    assert "+100%" in second and second.count("-50%") == 2
    assert not any("J/token" in line for line in drawn)


def test_energy_where_it_was_measured_and_batches_that_did_not_fit() -> None:
    drawn = lines(
        cell(NAMES[0], 1, 2.0, joules=50.0),
        cell(NAMES[1], 1, 1.0, joules=20.0),
        cell(NAMES[0], 64),
        cell(NAMES[1], 64, 4.0),
    )
    assert "0.25" in row_of(drawn, "100", "llama-2-7b ") and "J/token" in drawn[2]
    batch_64 = drawn.index(row_of(drawn, "batch 64 "))
    assert "llama-2-7b " in drawn[batch_64 + 1] and "does not fit" in drawn[batch_64 + 1]
    alone = row_of(drawn, "3,200")
    assert "%" not in alone, "one repetition has no spread, and nothing to be compared with"


@pytest.mark.parametrize(("repetitions", "verdict"), [(3, "within noise"), (1, "undecided")])
def test_of_the_ideal_nothing_is_said_in_doubt(repetitions: int, verdict: str) -> None:
    models = [model("dense"), model("pruned", 0.6)]
    for gain, verdicts in ((1.0, {verdict}), (1.3, {"faster", verdict})):
        made = throughput_record(
            models, gains={"pruned": gain}, noise=0.001, batches=(8,), repetitions=repetitions
        )
        rows = [line for line in lines_of(gain_table(typed(made))) if "batch 8" in line]
        for cells in ([cell.strip() for cell in row.split("│")[1:-1]] for row in rows):
            assert cells[-1] in verdicts and cells[3], "the ideal itself is there"
            assert bool(cells[4]) == (cells[-1] == "faster")
