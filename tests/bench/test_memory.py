"""`bench memory`: what is measured is what was predicted, and what is planted is seen."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.bench.engines import memory_child
from grasp_deploy.bench.memory import MemorySettings, bench_memory
from grasp_deploy.bench.memory_show import headlines, memory_table
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from tests.bench.records import lines_of, memory_record, model, row_of, typed
from tests.cli.command import REPOSITORY, assert_refused, grasp_deploy
from tests.tiny import tiny_config

BATCH, TOKENS = 4, 128
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}
# The C library and the kernels' own scratch memory: about a MiB, whatever the model.
SLACK_BYTES = 2 * 2**20


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config.json; children find the package where it is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    path = tmp_path / "tiny.json"
    tiny_config("llama", **SIZES, dtype="bfloat16").to_json_file(path)
    return path


@pytest.mark.slow
def test_what_is_measured_is_what_was_predicted(config: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "memory.json"
    options = ("--random-weights", "--prompt-tokens", str(TOKENS), "--batch", str(BATCH))
    ended = grasp_deploy(
        "bench", "memory", config, *options, "--device", "cpu", "--json", "-o", output
    )
    assert ended.code == 0, ended.stderr
    record = json.loads(ended.stdout)
    assert record == json.loads(output.read_text())
    assert "measuring prefills 1/1" in ended.stderr
    assert record["settings"]["device"] == "cpu" and record["settings"]["random_weights"]
    (cell,) = record["cells"]
    assert (cell["model"], cell["prompt_tokens"], cell["batch"]) == ("tiny", TOKENS, BATCH)
    measured, predicted = cell["measured"], cell["predicted"]
    assert measured["peak_bytes"] == sorted(s["peak_bytes"] for s in cell["samples"])[1]
    for sizes in (measured, predicted):
        rest = sizes["peak_bytes"] - sizes["weight_bytes"] - sizes["kv_bytes"]
        assert sizes["other_bytes"] == rest > 0
    for key in ("weight_bytes", "kv_bytes"):
        assert measured[key] == pytest.approx(predicted[key], rel=0.005)
    surplus = measured["peak_bytes"] - predicted["peak_bytes"]
    assert -SLACK_BYTES / 8 < surplus < SLACK_BYTES


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_measures_what_was_predicted(config: Path) -> None:
    settings = MemorySettings((512,), BATCH, repetitions=1, device="cuda")
    (cell,) = bench_memory(bench_models([str(config)], random_weights=True), settings, []).cells
    measured, predicted = cell.measured, cell.predicted
    assert measured.weight_bytes == pytest.approx(predicted.weight_bytes, rel=0.005)
    assert measured.kv_bytes == pytest.approx(predicted.kv_bytes, rel=0.005)
    assert 0 <= measured.peak_bytes - predicted.peak_bytes < 64 * 2**20


def test_what_does_not_fit_is_refused_before_it_begins(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grasp_deploy.engine.serve.available_memory_bytes", lambda: 2**20)
    bench = ("bench", "memory", config, "--random-weights", "--device", "cpu")
    ended = grasp_deploy(*bench, "--prompt-tokens", "256")
    assert_refused(ended, "4 prompts of 256 tokens of tiny take", "0.0 GiB are free")
    ended = grasp_deploy(*bench, "--prompt-tokens", "256,1024")
    assert_refused(ended, "1024 tokens exceed the 512 positions", "tiny", "--prompt-tokens")


def test_a_system_that_cannot_measure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_child, "RESET_PEAK", "no such command")
    with pytest.raises(InputError, match="peak of resident memory cannot be measured here"):
        memory_child.reset_peak()


def test_the_peak_against_the_first_model() -> None:
    document = memory_record([model("dense"), model("pruned", 0.6)], prompt_tokens=(256, 2048))
    record = typed(document)
    lines = headlines(record)
    assert {line["outcome"] for line in lines} == {"as predicted"}
    peaks = [cell["measured"]["peak_bytes"] for cell in document["cells"]]
    change = f"{peaks[3] / peaks[1] - 1:+.1%}"
    assert f"{change} against dense" in lines[1]["sentence"]
    drawn = lines_of(memory_table(record))
    for cell, changed in zip(document["cells"], ("", "", "-", change), strict=True):
        sizes = [*cell["measured"].values(), cell["predicted"]["peak_bytes"]]
        row = row_of(drawn, cell["model"], *(f"{size / 2**20:,.1f}" for size in sizes))
        assert changed in row
