"""Verdicts over throughput, with reasons that fit the shapes, and their tables."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.bench.throughput_show import gain_table, headlines, throughput_table, verdicts
from grasp_deploy.stats.noise import FASTER, SLOWER, UNDECIDED
from tests.bench.records import Record, lines_of, model, row_of, throughput_record, typed

DENSE = model("dense")
PRUNED = model("pruned", 0.6)
ALIGNED = model("aligned", 0.6, multiple=128)
SLOW = {"pruned": 0.9, "aligned": 0.9}
TINY: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}


def outcomes(record: Record) -> set[str]:
    return {row["outcome"] for row in verdicts(typed(record))}


def reasons(record: Record) -> set[str]:
    return {line["reason"] for line in headlines(typed(record)) if "reason" in line}


def test_a_model_that_reaches_its_ideal_needs_no_reasons() -> None:
    record = throughput_record([DENSE, PRUNED], noise=0.001)
    lines = headlines(typed(record))
    assert [line["quantity"] for line in lines] == ["throughput", "prefill", "decode"]
    assert "the throughput of dense at batch 1 to 64: faster at each" in lines[0]["sentence"]
    assert all(0.9 < row["share_of_ideal"] < 1.1 for row in verdicts(typed(record)))
    swapped = throughput_record([PRUNED, DENSE], noise=0.001)  # larger, and so it may be slower
    assert outcomes(swapped) == {SLOWER} and reasons(swapped) == set()


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([DENSE, PRUNED], {"odd widths", "many distinct shapes"}),
        ([DENSE, ALIGNED], {"many distinct shapes"}),
        ([model("dense", **TINY), model("pruned", 0.6, **TINY)], {"odd widths", "tiny model"}),
    ],
)
def test_reasons_of_a_slower_model(models: list[dict[str, Any]], expected: set[str]) -> None:
    record = throughput_record(models, gains=SLOW, noise=0.001)
    assert outcomes(record) == {SLOWER} and reasons(record) == expected
    sentence = headlines(typed(record))[0]["sentence"]
    assert "slower than dense at each" in sentence and "ideal" not in sentence
    twice = throughput_record(models, gains=SLOW, noise=0.001, repetitions=2)
    assert outcomes(twice) == {UNDECIDED} and reasons(twice) == set()
    assert "(n=2): repeat at least 3 times" in headlines(typed(twice))[0]["sentence"]


def test_odd_widths_are_no_reason_on_a_cpu() -> None:
    on_gpu = throughput_record([DENSE, PRUNED], gains=SLOW, noise=0.001)
    on_gpu["settings"]["device"] = "cpu"
    assert reasons(on_gpu) == {"many distinct shapes"}


def test_a_gain_that_grows_with_the_batch_is_launch_bound() -> None:
    record = throughput_record([DENSE, ALIGNED], noise=0.001, overhead_seconds=4e-3)
    assert "launch-bound small batches" in reasons(record)
    noisy = throughput_record([DENSE, ALIGNED], gains={"aligned": 1.0}, noise=0.05)
    assert "launch-bound small batches" not in reasons(noisy)


def test_a_batch_that_did_not_fit_is_left_out_and_named() -> None:
    document = throughput_record([DENSE, PRUNED], batches=(32, 64))
    for cell in document["cells"]:
        if (cell["model"], cell["batch"]) == ("dense", 64):
            cell["samples"], cell["refused"] = [], "batch 64 takes more than the GPU has"
        for sample in cell["samples"]:
            sample["tpot_seconds"] = None  # as if there were but one new token
    record = typed(document)
    points = [(row["batch"], row["quantity"]) for row in verdicts(record)]
    assert points == [(32, "throughput"), (32, "prefill")]
    line = headlines(record)[0]
    assert (line["model"], line["outcome"]) == ("dense", "not measured")
    assert "batch 64 takes more" in line["sentence"]


def test_medians_with_spread_and_paired_changes() -> None:
    document = throughput_record([DENSE, PRUNED], batches=(8,))
    for cell, factor in zip(document["cells"], (1, 0.5), strict=True):
        for sample, seconds in zip(cell["samples"], (2.0, 4.0, 8.0), strict=True):
            sample |= {"seconds": factor * seconds, "joules": 50.0}
    drawn = lines_of(throughput_table(typed(document)))
    # 8 x 256 tokens in 4 s; half the range of 1,024, 512 and 256 tokens/s is 75 % of 512
    assert row_of(drawn, "dense", "512 ±75%").count("%") == 1 and row_of(drawn, "J/token")
    assert row_of(drawn, "dense", "0.0244")  # 50 J for as many tokens
    assert row_of(drawn, "pruned", "1,024 ±75%", "+100%")


@pytest.mark.parametrize(
    ("gain", "verdict", "repetitions"),
    [(1.0, "within noise", 3), (1.3, UNDECIDED, 2), (1.3, FASTER, 3), (0.8, SLOWER, 3)],
)
def test_of_the_ideal_nothing_is_said_in_doubt(gain: float, verdict: str, repetitions: int) -> None:
    options: dict[str, Any] = {"batches": (8,), "repetitions": repetitions, "noise": 0.001}
    made = throughput_record([DENSE, PRUNED], gains={"pruned": gain}, **options)
    row = row_of(lines_of(gain_table(typed(made))), "batch 8")
    *_, ideal, share, shown = [cell.strip() for cell in row.split("│")[1:-1]]
    assert ideal and shown == verdict and bool(share) == (verdict == "faster")
