"""Verdicts over throughput and their tables; the ideal, against bytes and operations by hand."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, structs

from grasp_deploy.bench.record import MeasuredModel
from grasp_deploy.bench.throughput import Cell, Sample
from grasp_deploy.bench.throughput_show import (
    decode_step_bytes,
    gains_by_model,
    headlines,
    ideal_gain,
    prefill_operations,
    tables,
)
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.stats.noise import FASTER, SLOWER, UNDECIDED
from tests.bench.records import lines_of, model, row_of, throughput_record, typed
from tests.tiny import VARIANTS, tiny_config

DENSE = model("dense")
PRUNED = model("pruned", 0.6)


def test_gains_against_the_first_model_reach_the_ideal() -> None:
    record = typed(throughput_record([DENSE, PRUNED], noise=0.001))
    (line,) = headlines(record)
    assert "the throughput of dense at batch 1 to 64 (ideal 1." in line["sentence"]
    assert line["sentence"].endswith("): faster at each.") and line["outcome"] == FASTER
    (found,) = gains_by_model(record)
    assert all(0.95 < measured.ratio / ideal < 1.05 for _, measured, ideal in found)
    twice = throughput_record([DENSE, PRUNED], repetitions=2)
    assert "(n=2): repeat at least 3 times" in next(headlines(typed(twice)))["sentence"]


def test_a_batch_that_did_not_fit_is_left_out_and_named() -> None:
    document = throughput_record([DENSE, PRUNED], batches=(32, 64))
    for cell in document["cells"]:
        if (cell["model"], cell["batch"]) == ("dense", 64):
            cell["samples"], cell["refused"] = [], "batch 64 takes more than the GPU has"
        for sample in cell["samples"]:
            sample["tpot_seconds"] = None  # as if there were but one new token
    record = typed(document)
    assert [cell.batch for cell, *_ in gains_by_model(record)[0]] == [32]
    assert row_of(lines_of(tables(record)[0]), "does not fit")
    line, *_ = headlines(record)
    assert (line["model"], line["outcome"]) == ("dense", "not measured")
    assert "batch 64 takes more" in line["sentence"]


def test_medians_with_spread_and_paired_changes() -> None:
    document = throughput_record([DENSE, PRUNED], batches=(8,))
    for cell, factor in zip(document["cells"], (1, 0.5), strict=True):
        for sample, seconds in zip(cell["samples"], (2.0, 4.0, 8.0), strict=True):
            sample["seconds"] = factor * seconds
    drawn = lines_of(tables(typed(document))[0])
    # 8 x 256 tokens in 4 s; half the range of 1,024, 512 and 256 tokens/s is 75 % of 512
    assert row_of(drawn, "dense", "512 ±75%").count("%") == 1
    assert row_of(drawn, "pruned", "1,024 ±75%", "+100%")


@pytest.mark.parametrize(
    ("gain", "verdict", "repetitions"),
    [(1.0, "within noise", 3), (1.3, UNDECIDED, 2), (1.3, FASTER, 3), (0.8, SLOWER, 3)],
)
def test_the_verdict_stands_beside_the_ideal(gain: float, verdict: str, repetitions: int) -> None:
    options: dict[str, Any] = {"batches": (8,), "repetitions": repetitions, "noise": 0.001}
    made = throughput_record([DENSE, PRUNED], gains={"pruned": gain}, **options)
    row = row_of(lines_of(tables(typed(made))[1]), "batch 8")
    _, ratio, interval, ideal, shown = [cell.strip() for cell in row.split("│")[1:-1]]
    assert ratio == f"{gain:.2f}x" and float(ideal[:-1]) > 1.3
    assert shown == verdict and bool(interval) == (repetitions == 3)


TIMES = [Sample(seconds=10.0, ttft_seconds=4.0, tpot_seconds=1.0)]


def model_of(keep: float = 1.0, changes: dict[str, Any] | None = None, **sizes: Any) -> Any:
    document = model("any", keep, **sizes)
    document["footprint"] |= changes or {}
    return convert(document, MeasuredModel)


def cell(batch: int, prompt: int, new: int) -> Cell:
    point = {"batch": batch, "prompt_tokens": prompt, "new_tokens": new}
    return convert({"model": "any", **point, "samples": TIMES}, Cell)


def test_decoding_moves_the_weights_and_the_cache() -> None:
    layer = 4096 * (4 * 4096 + 3 * 11008) + 2 * 4096
    weight_bytes = 2 * (32 * layer + 4096 + 32000 * 4096)  # lm_head, but not the embedding
    cache_bytes = 4 * 110 * 32 * 2 * 4096 * 2
    for tied in (False, True):  # a tied table is read as the output projection
        dense = model_of(tie_word_embeddings=tied)
        assert decode_step_bytes(dense, cell(4, 100, 20)) == weight_bytes + cache_bytes


def test_decoding_reads_and_writes_the_states_of_linear_attention() -> None:
    plain, at = model_of(), cell(4, 100, 20)
    hybrid = model_of(changes={"state_bytes_per_sequence": 1000})
    assert decode_step_bytes(hybrid, at) == decode_step_bytes(plain, at) + 2 * 4 * 1000


def test_a_window_hides_what_lies_before_it(tmp_path: Path) -> None:
    tiny_config(**VARIANTS["gemma3-sliding"]).to_json_file(tmp_path / "config.json")
    (told,) = bench_models([str(tmp_path)], random_weights=True)
    windowed, at = MeasuredModel.of(told), cell(5, 100, 20)
    assert (windowed.windowed_share, windowed.window_tokens) == (2 / 3, 8)
    plain = structs.replace(windowed, windowed_share=0.0)
    cached = at.batch * (110 - 8) * told.shape.kv_bytes_per_token() * 2 / 3
    read_bytes = decode_step_bytes(plain, at) - decode_step_bytes(windowed, at)
    assert read_bytes == pytest.approx(cached)
    pairs = sum(max(0, position - 8) for position in range(1, 101))
    queries = 2 * told.shape.layers[0].num_attention_heads * told.shape.head_dim
    operations = prefill_operations(plain, at) - prefill_operations(windowed, at)
    assert operations == pytest.approx(at.batch * 4 * pairs * queries)
    short = cell(5, 6, 4)
    assert ideal_gain(plain, windowed, short) == 1, "all is within the window"


def test_an_embedding_stays_plain_where_weights_are_quantised() -> None:
    table_bytes, weight_bytes = 2 * 32000 * 4096, 4 * 2**30  # at less than a byte a weight
    quantised = model_of(changes={"weight_bytes": weight_bytes, "quantization": "awq"})
    cache_bytes = 4 * 110 * 32 * 2 * 4096 * 2
    read_bytes = decode_step_bytes(quantised, cell(4, 100, 20))
    assert read_bytes == weight_bytes - table_bytes + cache_bytes


EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def test_a_step_reads_no_more_experts_than_its_tokens_take() -> None:
    many, few = (model_of(num_experts=count, **EXPERTS) for count in (128, 64))
    expert, rows = 2 * 3 * 32 * 4096 * 768, 2 * 32 * 64 * 4096  # rows of routers
    for batch, more in ((1, 0), (8, 0), (9, 8), (16, 64), (99, 64)):
        at = cell(batch, 100, 20)
        assert decode_step_bytes(many, at) - decode_step_bytes(few, at) == rows + more * expert
    at = cell(1, 3, 1)
    operations = prefill_operations(many, at) - prefill_operations(few, at)
    assert operations == 3 * rows, "a token takes eight of either"


def test_a_prefill_counts_linear_attention_and_gates_of_attention() -> None:
    sizes: dict[str, Any] = {f"linear_{name}_head_dim": 128 for name in ("key", "value")}
    sizes |= {f"linear_num_{name}_heads": 16 for name in ("key", "value")}
    hybrid = model_of(
        model_type="qwen3_5_text",
        architectures=["Qwen3_5ForCausalLM"],
        layer_types=["linear_attention", "full_attention"],
        num_hidden_layers=2,
        head_dim=128,
        linear_conv_kernel_dim=4,
        **sizes,
    )
    linear = 4096 * (5 * 2048 + 2 * 16) + 3 * 2048 * 4  # q, k, v, z, o; a and b; convolution
    plain = 4096 * 5 * 4096  # with the gate of q
    attention = 4 * (1 + 2 + 3) * 4096
    expected = 6 * (linear + plain + 2 * 3 * 4096 * 11008) + attention + 2 * 4096 * 32000
    assert prefill_operations(hybrid, cell(1, 3, 1)) == pytest.approx(expected, rel=1e-3)


def test_a_prefill_counts_linear_layers_attention_and_the_last_logits() -> None:
    norms = 32 * 2 * 4096 + 4096
    linear = 2 * 3 * (32 * 4096 * (4 * 4096 + 3 * 11008) + norms)
    attention = 4 * (1 + 2 + 3) * 32 * 4096
    logits = 2 * 4096 * 32000
    assert prefill_operations(model_of(), cell(5, 3, 1)) == 5 * (linear + attention + logits)


def test_the_ideal_of_the_whole_splits_the_dense_time() -> None:
    dense, pruned, at = model_of(), model_of(0.6), cell(8, 2048, 256)
    prefill = prefill_operations(dense, at) / prefill_operations(pruned, at)
    decode = decode_step_bytes(dense, at) / decode_step_bytes(pruned, at)
    assert 1.3 < decode < prefill < 1.9
    assert ideal_gain(dense, pruned, at) == pytest.approx(10 / (4 / prefill + 6 / decode))
