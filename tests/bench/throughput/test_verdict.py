"""Verdicts over throughput: faster, slower or neither, and reasons that fit the shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from grasp_deploy.bench.throughput.verdict import throughput_headlines, throughput_verdicts
from grasp_deploy.stats.noise import FASTER, NO_DIFFERENCE, SLOWER
from tests.bench.records import Record, model, throughput_record, typed

DENSE = model("dense")
PRUNED = model("pruned", 0.6)
ALIGNED = model("aligned", 0.6, multiple=128)


def verdicts(record: Record) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = to_builtins(throughput_verdicts(typed(record)))
    return rows


def headlines(record: Record) -> list[dict[str, Any]]:
    return throughput_headlines(typed(record))


def outcomes(record: Record) -> list[str]:
    return [row["outcome"] for row in verdicts(record)]


def reasons(record: Record) -> set[str]:
    return {line["reason"] for line in headlines(record) if "reason" in line}


def test_one_repetition_decides_nothing() -> None:
    record = throughput_record([DENSE, PRUNED], repetitions=1, batches=(1, 8))
    assert {outcome.partition(":")[0] for outcome in outcomes(record)} == {"undecided"}
    assert all(row["interval"] is None for row in verdicts(record))
    assert all(line["sentence"] for line in headlines(record))


def test_two_runs_of_one_model_give_no_difference() -> None:
    """Whole records, 3 quantities at 7 batch sizes with 3 repetitions: under 2 % have any claim."""
    again = {**DENSE, "name": "dense#2"}
    claims = 0
    for seed in range(100):
        record = throughput_record([DENSE, again], noise=0.03, seed=seed)
        claims += set(outcomes(record)) != {NO_DIFFERENCE}
    assert claims < 3


@pytest.mark.parametrize(("gain", "outcome"), [(1.2, FASTER), (0.85, SLOWER)])
def test_a_real_difference_is_found(gain: float, outcome: str) -> None:
    all_outcomes = []
    for seed in range(30):
        record = throughput_record(
            [DENSE, PRUNED], gains={"pruned": gain}, noise=0.02, seed=seed, batches=(1, 4, 16, 64)
        )
        rows = verdicts(record)
        all_outcomes += [row["outcome"] for row in rows]
        assert all(row["ratio"] == pytest.approx(gain, rel=0.1) for row in rows)
    assert all_outcomes.count(outcome) > 0.97 * len(all_outcomes)
    assert set(all_outcomes) <= {outcome, NO_DIFFERENCE}


def test_what_slows_all_models_alike_cancels() -> None:
    """Rounds differ by up to 30 %; paired, only the noise of each repetition is left."""
    record = throughput_record([DENSE, PRUNED], gains={"pruned": 1.1}, noise=1e-6)
    assert all(row["ratio"] == pytest.approx(1.1, rel=1e-4) for row in verdicts(record))


def test_a_model_that_reaches_its_ideal_needs_no_reasons() -> None:
    record = throughput_record([DENSE, PRUNED], noise=0.001)
    assert set(outcomes(record)) == {FASTER}
    assert all(0.9 < row["share_of_ideal"] < 1.1 for row in verdicts(record))
    assert reasons(record) == set()


def test_a_slower_model_of_odd_and_many_shapes() -> None:
    record = throughput_record([DENSE, PRUNED], gains={"pruned": 0.9}, noise=0.001)
    assert set(outcomes(record)) == {SLOWER}
    assert reasons(record) == {"odd widths", "many distinct shapes"}
    text = " ".join(line["sentence"] for line in headlines(record))
    assert "--ffn-multiple 128" in text and "--kv-multiple" in text


def test_aligned_widths_are_no_reason() -> None:
    record = throughput_record([DENSE, ALIGNED], gains={"aligned": 0.9}, noise=0.001)
    assert reasons(record) == {"many distinct shapes"}


def test_odd_widths_are_no_reason_on_a_cpu() -> None:
    on_gpu = throughput_record([DENSE, PRUNED], gains={"pruned": 0.9}, noise=0.001)
    without_gpu = {key: on_gpu["machine"][key] for key in ("processor", "cores")}
    asked_for = {**on_gpu["settings"], "device": "cpu"}
    for change in ({"machine": without_gpu}, {"settings": asked_for}):
        assert reasons({**on_gpu, **change}) == {"many distinct shapes"}


def test_odd_widths_are_told_of_models_of_one_depth() -> None:
    deeper = model("deeper", num_hidden_layers=40)
    record = throughput_record([deeper, PRUNED], gains={"pruned": 0.9}, noise=0.001)
    assert reasons(record) == {"many distinct shapes"}


def test_a_larger_model_that_is_slower_is_as_it_should_be() -> None:
    record = throughput_record([PRUNED, DENSE], noise=0.001)
    assert set(outcomes(record)) == {SLOWER}
    assert reasons(record) == set()


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"enforce_eager": True}, "leave out `--enforce-eager`"),
        ({"engine": "transformers"}, "serve with vLLM"),
        ({"enforce_eager": True, "device": "cpu"}, ""),
        ({}, ""),
    ],
)
def test_a_gain_that_grows_with_the_batch_is_launch_bound(
    settings: dict[str, Any], remedy: str
) -> None:
    record = throughput_record([DENSE, ALIGNED], noise=0.001, overhead_seconds=4e-3, **settings)
    assert "launch-bound small batches" in reasons(record)
    text = json.dumps(headlines(record))
    assert remedy in text and ("CUDA graphs" in text) == bool(remedy)


def test_noise_does_not_make_a_gain_grow_with_the_batch() -> None:
    record = throughput_record([DENSE, ALIGNED], gains={"aligned": 1.0}, noise=0.05)
    assert "launch-bound small batches" not in reasons(record)


def test_a_tiny_model_says_little() -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
    tiny = [model("dense", **sizes), model("pruned", 0.6, **sizes)]
    record = throughput_record(tiny, gains={"pruned": 0.9}, noise=0.001)
    assert "tiny model" in reasons(record)


def test_headlines_name_their_batches() -> None:
    record = throughput_record([DENSE, PRUNED], gains={"pruned": 1.2}, noise=0.001, batches=(1, 64))
    lines = [line for line in headlines(record) if "reason" not in line]
    assert [line["quantity"] for line in lines] == ["throughput", "prefill", "decode"]
    assert "the throughput of dense at batch 1 to 64: faster at each" in lines[0]["sentence"]


def test_a_batch_that_did_not_fit_is_left_out_and_named() -> None:
    record = throughput_record([DENSE, PRUNED], batches=(32, 64))
    for cell in record["cells"]:
        if (cell["model"], cell["batch"]) == ("dense", 64):
            cell["samples"], cell["refused"] = [], "batch 64 takes more than the GPU has"
    assert {row["batch"] for row in verdicts(record)} == {32}
    line = headlines(record)[0]
    assert (line["model"], line["outcome"]) == ("dense", "not measured")
    assert "batch 64 takes more" in line["sentence"]
