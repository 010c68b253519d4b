"""`bench memory`: predictions against live tensors, a GPU and the paper; the table says both."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from grasp_deploy.bench.memory import MemorySettings, Sizes, bench_memory
from grasp_deploy.bench.memory_show import headlines, tables
from grasp_deploy.bench.prefill import live_bytes, predict_prefill
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from tests.bench.records import lines_of, memory_record, model, row_of, typed
from tests.cli.command import grasp_deploy, succeeded
from tests.tiny import VARIANTS, pruned_config, tiny_config

BATCH = 4
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    tiny_config("llama", **SIZES, dtype="bfloat16").to_json_file(path)
    return path


def test_without_a_gpu_it_predicts_up_to_the_models_limit(config: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "memory.json"
    options = ("--random-weights", "--batch", str(BATCH), "--device", "cpu", "--json")
    ended = succeeded("bench", "memory", config, *options, "-o", output)
    record = json.loads(ended.stdout)
    assert record == json.loads(output.read_text())
    assert record["settings"]["device"] == "cpu" and record["settings"]["random_weights"]
    assert record["settings"]["prompt_tokens"] == [256, 512], "of 256 to 2,048"
    assert "prefills of 256 and 512 tokens" in ended.stderr
    for cell, tokens in zip(record["cells"], (256, 512), strict=True):
        assert (cell["model"], cell["prompt_tokens"], cell["batch"]) == ("tiny", tokens, BATCH)
        assert cell["measured"] is None and cell["predicted"]["other_bytes"] > 0
    (line,) = headlines(typed(record))
    assert line["outcome"] == "predicted only"
    assert row_of(lines_of(tables(typed(record))[0]), "predicted only, not measured on a GPU")


def test_the_record_is_written_before_it_is_shown(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("grasp_deploy.cli.bench.print_report", interrupted)
    options = ("--random-weights", "--prompt-tokens", "8", "--device", "cpu")
    output = tmp_path / "memory.json"
    ended = grasp_deploy("bench", "memory", config, *options, "-o", output)
    assert ended.code == 130 and json.loads(output.read_text())["benchmark"] == "memory"


def test_quantised_models_are_named_before_anything_is_measured(config: Path) -> None:
    seen: list[dict[str, Any]] = []
    (plain,) = bench_models([str(config)], random_weights=True)
    shape = replace(plain.shape, quantization="fp8")
    models = [plain, *(replace(plain, name=name, shape=shape) for name in ("a", "b"))]
    settings = MemorySettings((8,), device="cpu")
    with pytest.raises(InputError, match="leave out a and b, which are quantised"):
        bench_memory(models, settings, [], seen.append)
    assert not seen


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_measures_what_was_predicted(config: Path) -> None:
    settings = MemorySettings((512,), BATCH, device="cuda")
    (cell,) = bench_memory(bench_models([str(config)], random_weights=True), settings, []).cells
    measured, predicted = cell.measured, cell.predicted
    assert measured is not None
    assert measured.weight_bytes == pytest.approx(predicted.weight_bytes, rel=0.005)
    assert measured.kv_bytes == pytest.approx(predicted.kv_bytes, rel=0.005)
    assert 0 <= measured.peak_bytes - predicted.peak_bytes < 64 * 2**20


def test_the_peak_against_the_first_model() -> None:
    document = memory_record([model("dense"), model("pruned", 0.6)], prompt_tokens=(256, 2048))
    record = typed(document)
    lines = list(headlines(record))
    assert {line["outcome"] for line in lines} == {"as predicted"}
    peaks = [cell["measured"]["peak_bytes"] for cell in document["cells"]]
    change = f"{peaks[3] / peaks[1] - 1:+.1%}"
    assert f"{change} against dense" in lines[1]["sentence"]
    drawn = lines_of(tables(record)[0])
    for cell, changed in zip(document["cells"], ("", "", "-", change), strict=True):
        sizes = [*cell["measured"].values(), cell["predicted"]["peak_bytes"]]
        row = row_of(drawn, cell["model"], *(f"{size / 2**20:,.1f}" for size in sizes))
        assert changed in row


LLAMA_2_7B = Path(__file__).parents[2] / "benchmarks/configs/llama-2-7b.json"
MIB = 2**20


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(
    "variant",
    ["llama-mha", "llama-biases", "mistral", "qwen2", "qwen3", "qwen3-5-linear-last"],
)
def test_the_peak_is_exact_for_every_family(variant: str, pruned: bool, tmp_path: Path) -> None:
    config: Any = tiny_config(**VARIANTS[variant], dtype="bfloat16")
    if pruned:
        layers = [(1, 400), (config.num_key_value_heads, 40), (1, 8)]
        config = pruned_config(config, layers)
        config.architectures = [f"Grasp{name}" for name in config.architectures]
    config.save_pretrained(tmp_path)
    model = random_model(tmp_path, "cpu")
    kv, peak = live_bytes(model, 3, 64)
    sizes = predict_prefill(bench_models([str(tmp_path)], random_weights=True)[0], 3, 64)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert sizes == Sizes(weights, kv, weights + peak, peak - kv)


# Prompt tokens; the paper's KV cache and prefill peak of LLaMA-2-7B at batch 4, in MiB.
DENSE = [(256, 512, 13990.8), (512, 1024, 15120.9), (1024, 2048, 17375.2), (2048, 4096, 21889.8)]


@pytest.mark.parametrize(("tokens", "cache", "peak"), DENSE)
def test_llama_2_7b_is_as_in_the_paper(tokens: int, cache: float, peak: float) -> None:
    sizes = predict_prefill(bench_models([str(LLAMA_2_7B)], random_weights=True)[0], 4, tokens)
    assert sizes.weight_bytes / MIB == pytest.approx(12852.5, abs=0.1)
    assert sizes.kv_bytes / MIB == pytest.approx(cache, abs=0.1)
    assert sizes.weight_bytes + sizes.kv_bytes < sizes.peak_bytes < peak * MIB
