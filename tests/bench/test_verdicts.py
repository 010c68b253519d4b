"""Verdicts: no difference is made out of noise, a real one is found, and reasons fit the shapes."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from grasp_deploy.bench.ideal import (
    Load,
    decode_step_bytes,
    ideal_gain,
    prefill_operations,
    share_of_ideal,
)
from grasp_deploy.bench.verdicts import headlines, verdicts
from grasp_deploy.stats.noise import (
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    differences,
    log_ratios,
    t_quantile,
    two_sided,
)
from tests.report.records import (
    kv_record,
    memory_record,
    model,
    quality_record,
    serve_record,
    throughput_record,
)

DENSE = model("dense")
PRUNED = model("pruned", 0.6)
ALIGNED = model("aligned", 0.6, multiple=128)


def outcomes(record: dict[str, Any]) -> list[str]:
    return [verdict["outcome"] for verdict in verdicts(record)]


def reasons(record: dict[str, Any]) -> set[str]:
    return {line["reason"] for line in headlines(record) if "reason" in line}


# Two-sided 95 % points of Student's t, as printed in any table of it.
@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_quantiles_of_t(freedom: int, expected: float) -> None:
    assert t_quantile(0.05, freedom) == pytest.approx(expected, abs=6e-4)
    assert two_sided(t_quantile(0.01, freedom), freedom) == pytest.approx(0.01)


def test_the_interval_of_one_comparison_is_students() -> None:
    ratios = [math.log(r) for r in (1.10, 1.20, 1.15)]
    (found,) = differences([ratios], comparisons=1)
    mean = sum(ratios) / 3
    deviation = math.sqrt(sum((r - mean) ** 2 for r in ratios) / 2)
    half_width = 4.302653 * deviation / math.sqrt(3)
    assert found.ratio == pytest.approx((1.10 * 1.20 * 1.15) ** (1 / 3))
    assert found.interval == pytest.approx(
        (math.exp(mean - half_width), math.exp(mean + half_width))
    )
    assert found.outcome == FASTER


def test_three_samples_that_lie_close_are_judged_by_the_noise_of_all() -> None:
    lucky = [math.log(r) for r in (1.050, 1.051, 1.049)]
    noisy = [[0.1, -0.1, 0.02], [-0.08, 0.09, 0.0], [0.05, -0.12, 0.07]]
    assert differences([lucky], 1)[0].outcome == FASTER
    assert [d.outcome for d in differences([lucky, *noisy], 4)] == [NO_DIFFERENCE] * 4


def test_two_per_cent_is_the_least_that_is_called_a_difference() -> None:
    rates = [100.0, 100.1, 99.9]
    for gain, outcome in ((1.019, NO_DIFFERENCE), (1.025, FASTER), (0.97, SLOWER)):
        ratios = log_ratios(rates, [gain * rate for rate in rates])
        assert differences([ratios], 1)[0].outcome == outcome


def test_one_repetition_decides_nothing() -> None:
    record = throughput_record([DENSE, PRUNED], repetitions=1, batches=(1, 8))
    assert {outcome.partition(":")[0] for outcome in outcomes(record)} == {"undecided"}
    assert all(verdict["interval"] is None for verdict in verdicts(record))
    assert all(line["sentence"] for line in headlines(record))


@pytest.mark.parametrize("repetitions", [2, 3, 5, 10])
@pytest.mark.parametrize("noisy_point", [1.0, 4.0])
def test_noise_alone_is_hardly_ever_called_a_difference(
    repetitions: int, noisy_point: float
) -> None:
    """7 points and 5 % of noise, or 20 % at one of them; 1,000 records of one quantity."""
    draw = random.Random(repetitions)
    records = false_claims = records_with_one = 0
    for _ in range(1000):
        points = [
            [draw.gauss(0, 0.05 * (noisy_point if point == 0 else 1)) for _ in range(repetitions)]
            for point in range(7)
        ]
        wrong = sum(d.outcome != NO_DIFFERENCE for d in differences(points, 21))
        records, false_claims = records + 1, false_claims + wrong
        records_with_one += wrong > 0
    assert false_claims / (7 * records) < 0.01
    assert records_with_one / records < 0.05


def test_two_runs_of_one_model_give_no_difference() -> None:
    """Whole records, 3 quantities at 7 batch sizes with 3 repetitions: under 2 % have any claim."""
    again = {**DENSE, "name": "dense#2"}
    claims = 0
    for seed in range(200):
        record = throughput_record([DENSE, again], noise=0.03, seed=seed)
        claims += set(outcomes(record)) != {NO_DIFFERENCE}
    assert claims < 4


@pytest.mark.parametrize(("gain", "outcome"), [(1.2, FASTER), (0.85, SLOWER)])
def test_a_real_difference_is_found(gain: float, outcome: str) -> None:
    found = []
    for seed in range(50):
        record = throughput_record(
            [DENSE, PRUNED], gains={"pruned": gain}, noise=0.02, seed=seed, batches=(1, 4, 16, 64)
        )
        found += outcomes(record)
        ratios = [verdict["ratio"] for verdict in verdicts(record)]
        assert all(ratio == pytest.approx(gain, rel=0.1) for ratio in ratios)
    assert found.count(outcome) > 0.97 * len(found)
    assert set(found) <= {outcome, NO_DIFFERENCE}


def test_what_slows_all_models_alike_cancels() -> None:
    """Rounds differ by up to 30 %; paired, only the noise of each repetition is left."""
    record = throughput_record([DENSE, PRUNED], gains={"pruned": 1.1}, noise=1e-6)
    assert all(verdict["ratio"] == pytest.approx(1.1, rel=1e-4) for verdict in verdicts(record))


def test_the_ideal_of_decoding_is_bytes_counted_by_hand() -> None:
    load = Load(batch=4, prompt_tokens=100, new_tokens=20)
    layer = 4096 * (4 * 4096 + 3 * 11008) + 2 * 4096
    weight_bytes = 2 * (32 * layer + 4096 + 32000 * 4096)  # lm_head, but not the embedding
    cache_bytes = 4 * 110 * 32 * 2 * 4096 * 2
    assert decode_step_bytes(DENSE["footprint"], load) == weight_bytes + cache_bytes


def test_a_tied_table_is_read_as_the_output_projection() -> None:
    load = Load(1, 1, 2)
    tied = model("tied", tie_word_embeddings=True)["footprint"]
    assert decode_step_bytes(tied, load) == decode_step_bytes(DENSE["footprint"], load)


def test_the_ideal_of_the_prefill_is_operations_counted_by_hand() -> None:
    linear = 2 * 3 * 32 * 4096 * (4 * 4096 + 3 * 11008)
    attention = 4 * (1 + 2 + 3) * 32 * 4096
    logits = 2 * 4096 * 32000
    load = Load(batch=5, prompt_tokens=3, new_tokens=1)
    assert prefill_operations(DENSE["footprint"], load) == 5 * (linear + attention + logits)


def test_the_ideal_of_all_splits_the_dense_time() -> None:
    load, samples = Load(8, 2048, 256), [{"seconds": 10.0, "ttft_seconds": 4.0}]
    ideal = ideal_gain(DENSE["footprint"], PRUNED["footprint"], load, samples)
    assert 1.3 < ideal["decode"] < ideal["prefill"] < 1.9
    assert ideal["throughput"] == pytest.approx(10 / (4 / ideal["prefill"] + 6 / ideal["decode"]))


def test_a_footprint_without_the_vocabulary_has_no_ideal() -> None:
    bare = [
        {**m, "footprint": {k: v for k, v in m["footprint"].items() if k != "vocab_size"}}
        for m in (DENSE, PRUNED)
    ]
    record = throughput_record([DENSE, PRUNED], batches=(1, 8))
    for verdict in verdicts({**record, "models": bare}):
        assert verdict["ideal"] is None and verdict["share_of_ideal"] is None
        assert "ideal" not in verdict["sentence"]


def test_share_of_ideal() -> None:
    assert share_of_ideal(1.5, 1.5) == 1
    assert share_of_ideal(math.sqrt(1.5), 1.5) == pytest.approx(0.5)
    assert share_of_ideal(1 / 1.5, 1.5) == pytest.approx(-1)
    assert share_of_ideal(1.3, 1.01) is None  # nothing to hope for
    assert share_of_ideal(1.3, 0.7) is None


def test_a_model_that_reaches_its_ideal_needs_no_reasons() -> None:
    record = throughput_record([DENSE, PRUNED], noise=0.001)
    assert set(outcomes(record)) == {FASTER}
    assert all(0.9 < verdict["share_of_ideal"] < 1.1 for verdict in verdicts(record))
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
    assert "not even of" not in json.dumps(headlines(record))


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


def test_launch_bound_small_batches() -> None:
    record = throughput_record([DENSE, ALIGNED], noise=0.001, overhead_seconds=4e-3)
    assert "launch-bound small batches" in reasons(record)
    for verdict in verdicts(record):
        launch = "launch-bound small batches" in [r["reason"] for r in verdict["reasons"]]
        assert not (launch and verdict["batch"] == 64)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"enforce_eager": True}, "leave out `--enforce-eager`"),
        ({"engine": "transformers"}, "serve with vLLM"),
        ({"enforce_eager": True, "device": "cpu"}, ""),
        ({}, ""),
    ],
)
def test_cuda_graphs_are_advised_where_they_were_not_used(
    settings: dict[str, Any], remedy: str
) -> None:
    record = throughput_record([DENSE, ALIGNED], noise=0.001, overhead_seconds=4e-3, **settings)
    text = json.dumps(headlines(record))
    assert remedy in text and ("CUDA graphs" in text) == bool(remedy)


def test_noise_does_not_make_a_gain_grow_with_the_batch() -> None:
    record = throughput_record([DENSE, ALIGNED], gains={"aligned": 1.0}, noise=0.05)
    assert "launch-bound small batches" not in reasons(record)


def test_tensor_parallel_replication() -> None:
    record = throughput_record([DENSE, ALIGNED], gains={"aligned": 1.0}, tensor_parallel=16)
    assert "tensor-parallel replication" in reasons(record)
    record["settings"]["tensor_parallel"] = 2
    assert "tensor-parallel replication" not in reasons(record)


def test_a_tiny_model() -> None:
    sizes = {
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "intermediate_size": 640,
        "vocab_size": 512,
    }
    models = [model("tiny", **sizes), model("tiny-pruned", 0.5, multiple=64, **sizes)]
    record = throughput_record(models, gains={"tiny-pruned": 1.0})
    assert "tiny model" in reasons(record)
    assert "tiny model" not in reasons(throughput_record([DENSE, PRUNED], gains={"pruned": 1.0}))


def test_a_single_new_token_has_no_decode_speed() -> None:
    record = throughput_record([DENSE, PRUNED], batches=(1, 2))
    for cell in record["cells"]:
        for sample in cell["samples"]:
            sample["tpot_seconds"] = None
    assert {verdict["quantity"] for verdict in verdicts(record)} == {"throughput", "prefill"}


def test_points_that_were_not_measured_are_left_out() -> None:
    record = throughput_record([DENSE, PRUNED], batches=(1, 64))
    cells = [c for c in record["cells"] if (c["model"], c["batch"]) != ("dense", 64)]
    assert {v["batch"] for v in verdicts({**record, "cells": cells})} == {1}


def test_a_batch_that_did_not_fit_is_named() -> None:
    record = throughput_record([DENSE, PRUNED], batches=(32, 64))
    for cell in record["cells"]:
        if (cell["model"], cell["batch"]) == ("dense", 64):
            cell["samples"], cell["refused"] = [], "batch 64 takes more than the GPU has"
    assert {v["batch"] for v in verdicts(record)} == {32}
    line = headlines(record)[0]
    assert (line["model"], line["outcome"]) == ("dense", "not measured")
    assert "batch 64 takes more" in line["sentence"]


def test_memory() -> None:
    rows = verdicts(memory_record([DENSE, PRUNED]))
    assert {row["outcome"] for row in rows} == {"as predicted"}
    assert [row["change"] is None for row in rows] == [True] * 4 + [False] * 4
    peaks = {(row["model"], row["prompt_tokens"]): row["peak_bytes"] for row in rows}
    saved = 1 - peaks["pruned", 2048] / peaks["dense", 2048]
    assert f"{saved:.1%} below dense's" in rows[-1]["sentence"]


@pytest.mark.parametrize(("error", "outcome"), [(0.004, "as"), (-0.006, "not as"), (0.1, "not as")])
def test_memory_that_is_not_what_was_predicted(error: float, outcome: str) -> None:
    (line,) = headlines(memory_record([DENSE], weight_error=error))
    assert line["outcome"] == f"{outcome} predicted"
    assert f"{error:+.2%} at worst" in line["sentence"]


def test_kv_capacity() -> None:
    record = kv_record([DENSE, PRUNED])
    rows = verdicts(record)
    pools = [20 * 2**30 - m["footprint"]["weight_bytes"] for m in (DENSE, PRUNED)]
    tokens = [
        pool // m["footprint"]["kv_bytes_per_token"]
        for pool, m in zip(pools, (DENSE, PRUNED), strict=True)
    ]
    assert rows[-1]["gain"] == pytest.approx(tokens[1] / tokens[0], rel=0.01)
    assert {row["outcome"] for row in rows} == {"as predicted"}
    held = f"{pools[0] / 2**30:.2f} GiB of cache hold {tokens[0] // 2048} sequences of 2,048 tokens"
    assert held in rows[0]["sentence"]
    assert outcomes(kv_record([DENSE], measured=False)) == ["predicted only"] * 2
    cell = record["cells"][0]
    for missing, outcome in ((127, "as predicted"), (128, "not as predicted")):  # a block or more
        cell["measured"]["cached_tokens"] = cell["predicted"]["cached_tokens"] - missing
        assert outcomes(record)[0] == outcome
    assert len(headlines(record)) == 2


def test_serving() -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 1.3})
    assert outcomes(record) == ["no request failed"] * 3 + [FASTER] * 3
    dense, pruned = headlines(record)
    assert "none of 4,500 requests failed" in dense["sentence"]
    assert pruned["outcome"] == FASTER and "over 3 loads: faster at each" in pruned["sentence"]
    assert set(outcomes(serve_record([DENSE, {**DENSE, "name": "dense#2"}]))[3:]) == {NO_DIFFERENCE}


def test_reasons_of_a_slower_server() -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 0.8})
    assert {"odd widths", "many distinct shapes"} <= reasons(record)
    assert "tensor-parallel replication" not in reasons(record)
    for flags in (["--tensor-parallel-size", "16"], ["--tensor-parallel-size=16"], ["-tp", "16"]):
        record["settings"]["server_flags"] = flags
        assert "tensor-parallel replication" in reasons(record)


@pytest.mark.parametrize("model_name", ["dense", "pruned"])
def test_failed_requests_are_named_and_nothing_is_compared(model_name: str) -> None:
    record = serve_record([DENSE, PRUNED], gains={"pruned": 1.3}, failed={model_name: 2})
    failed = [row for row in verdicts(record) if row["failed"]]
    assert {row["model"] for row in failed} == {model_name}
    assert all("6 requests failed" in row["sentence"] for row in failed)
    assert all(row["ratio"] is None for row in verdicts(record))
    lines = {line["model"]: line["outcome"] for line in headlines(record)}
    assert lines[model_name] == "18 requests failed"


def test_verdicts_are_json_with_a_sentence() -> None:
    models = [DENSE, PRUNED, ALIGNED]
    records = [throughput_record(models), memory_record(models), kv_record(models)]
    for record in (*records, serve_record(models)):
        rows = [*verdicts(record), *headlines(record)]
        assert rows and json.loads(json.dumps(rows)) == rows
        for row in rows:
            assert row["benchmark"] == record["benchmark"]
            assert row["model"] in {m["name"] for m in models}
            assert row["sentence"].endswith(".") and "nan" not in row["sentence"]
            assert row["outcome"]


def test_a_kind_without_a_judge_has_no_verdicts() -> None:
    record = quality_record([DENSE], ["wikitext2"])
    assert verdicts(record) == [] and headlines(record) == []
