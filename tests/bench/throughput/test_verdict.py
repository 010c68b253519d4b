"""Verdicts over throughput: faster, slower or neither, and reasons that fit the shapes."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.bench.throughput.verdict import headlines, verdicts
from grasp_deploy.stats.noise import FASTER, NO_DIFFERENCE, SLOWER
from tests.bench.records import Record, model, throughput_record, typed

DENSE = model("dense")
PRUNED = model("pruned", 0.6)
ALIGNED = model("aligned", 0.6, multiple=128)
SLOW = {"pruned": 0.9, "aligned": 0.9}
TINY: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}


def outcomes(record: Record) -> set[str]:
    return {row["outcome"] for row in verdicts(typed(record))}


def reasons(record: Record) -> set[str]:
    return {line["reason"] for line in headlines(typed(record)) if "reason" in line}


def test_two_runs_of_one_model_give_no_difference() -> None:
    """Whole records, 3 quantities at 7 batch sizes with 3 repetitions: under 3 % have any claim."""
    again = {**DENSE, "name": "dense#2"}
    records = (throughput_record([DENSE, again], noise=0.03, seed=seed) for seed in range(100))
    assert sum(outcomes(record) != {NO_DIFFERENCE} for record in records) < 3


@pytest.mark.parametrize(("gain", "outcome"), [(1.2, FASTER), (0.85, SLOWER)])
def test_a_real_difference_is_found(gain: float, outcome: str) -> None:
    rows = []
    for seed in range(30):
        record = throughput_record(
            [DENSE, PRUNED], gains={"pruned": gain}, noise=0.02, seed=seed, batches=(1, 4, 16, 64)
        )
        rows += verdicts(typed(record))
    assert all(row["ratio"] == pytest.approx(gain, rel=0.1) for row in rows)
    assert sum(row["outcome"] == outcome for row in rows) > 0.97 * len(rows)
    assert {row["outcome"] for row in rows} <= {outcome, NO_DIFFERENCE}


def test_what_slows_all_models_alike_cancels() -> None:
    """Rounds differ by up to 30 %; paired, only the noise of each repetition is left."""
    record = throughput_record([DENSE, PRUNED], gains={"pruned": 1.1}, noise=1e-6)
    assert all(row["ratio"] == pytest.approx(1.1, rel=1e-4) for row in verdicts(typed(record)))


def test_a_model_that_reaches_its_ideal_needs_no_reasons() -> None:
    record = throughput_record([DENSE, PRUNED], noise=0.001)
    assert outcomes(record) == {FASTER} and reasons(record) == set()
    assert all(0.9 < row["share_of_ideal"] < 1.1 for row in verdicts(typed(record)))
    swapped = throughput_record([PRUNED, DENSE], noise=0.001)  # larger, and so it may be slower
    assert outcomes(swapped) == {SLOWER} and reasons(swapped) == set()


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([DENSE, PRUNED], {"odd widths", "many distinct shapes"}),
        ([DENSE, ALIGNED], {"many distinct shapes"}),
        (
            [model("dense", **TINY), model("pruned", 0.6, **TINY)],
            {"odd widths", "tiny model"},
        ),
    ],
)
def test_reasons_of_a_slower_model(models: list[dict[str, Any]], expected: set[str]) -> None:
    record = throughput_record(models, gains=SLOW, noise=0.001)
    assert outcomes(record) == {SLOWER} and reasons(record) == expected


def test_odd_widths_are_no_reason_on_a_cpu() -> None:
    on_gpu = throughput_record([DENSE, PRUNED], gains=SLOW, noise=0.001)
    assert reasons({**on_gpu, "machine": {}}) == {"many distinct shapes"}
    on_gpu["settings"]["device"] = "cpu"
    assert reasons(on_gpu) == {"many distinct shapes"}


def test_a_gain_that_grows_with_the_batch_is_launch_bound() -> None:
    record = throughput_record([DENSE, ALIGNED], noise=0.001, overhead_seconds=4e-3)
    assert "launch-bound small batches" in reasons(record)
    noisy = throughput_record([DENSE, ALIGNED], gains={"aligned": 1.0}, noise=0.05)
    assert "launch-bound small batches" not in reasons(noisy)


def test_headlines_name_their_batches() -> None:
    record = throughput_record([DENSE, PRUNED], gains={"pruned": 1.2}, noise=0.001, batches=(1, 64))
    lines = [line for line in headlines(typed(record)) if "reason" not in line]
    assert [line["quantity"] for line in lines] == ["throughput", "prefill", "decode"]
    assert "the throughput of dense at batch 1 to 64: faster at each" in lines[0]["sentence"]


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
