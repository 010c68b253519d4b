"""`bench throughput`: rounds in which every model has its turn, and one record of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import to_builtins

from grasp_deploy.bench.throughput import (
    ThroughputRecord,
    ThroughputSettings,
    bench_throughput,
)
from grasp_deploy.bench.throughput_child import vllm_arguments
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.record import read_record
from tests.cli.command import REPOSITORY, document, succeeded
from tests.installed import pretend
from tests.tiny import save_tiny

SMALL = ("--prompt-tokens", "16", "--new-tokens", "4", "--batch", "1,3")
KV_BYTES_PER_TOKEN = 2 * 3 * 2 * 32 * 4  # K and V, layers, heads, width, float32


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two dense models of the same sizes, but for the width of their FFN."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny("llama", folder / "wide")
    save_tiny("llama", folder / "narrow", intermediate_size=32)
    return [folder / "wide", folder / "narrow"]


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Children without a model, whichever engine is asked for; gives the log of their requests."""
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr("grasp_deploy.bench.throughput.CHILD", "tests.bench.fake_engine")
    return log


def measured(models: list[Path], **changes: Any) -> ThroughputRecord:
    few = {"engine": "transformers", "batches": (1, 4), "prompt_tokens": 16, "new_tokens": 4}
    settings = ThroughputSettings(**{**few, "device": "cpu", **changes})
    told: list[ThroughputRecord] = []
    chosen = bench_models([str(path) for path in models])
    record = bench_throughput(chosen, settings, ["bench"], on_record=told.append)
    batches = [sorted({cell.batch for cell in one.cells}) for one in told]
    sizes = list(settings.batches)
    assert batches == [sizes[:place] for place, _ in enumerate(sizes, start=1)]
    return record


def test_samples_pair_up_and_interleave(models: list[Path], fake_engine: Path) -> None:
    record = measured(models, repetitions=3)
    points = [(cell.model, cell.batch) for cell in record.cells]
    assert points == [("wide", 1), ("narrow", 1), ("wide", 4), ("narrow", 4)]
    assert [len(cell.samples) for cell in record.cells] == [3] * 4
    turns = [json.loads(line) for line in fake_engine.read_text().splitlines()]
    rounds_of_one_batch = [("wide", 0), ("narrow", 0), ("wide", 1), ("narrow", 1)]
    rounds_of_one_batch += [("narrow", 2), ("wide", 2), ("wide", 3), ("narrow", 3)]
    expected = [[[name], batch, seed] for batch in (1, 4) for name, seed in rounds_of_one_batch]
    assert turns == expected


@pytest.mark.usefixtures("fake_engine")
def test_a_batch_that_does_not_fit_costs_only_its_own_cells(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LARGEST_BATCH", "2")
    record = measured(models)
    assert [len(cell.samples) for cell in record.cells] == [3, 3, 0, 0]
    assert record.cells[2].refused == "4 prompts do not fit: take smaller batches"
    assert record.cells[0].refused is None
    with pytest.raises(InputError, match=r"^4 prompts do not fit"):
        measured(models, batches=(4,))


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_models_that_do_not_fit_side_by_side_are_refused(
    engine: str, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    monkeypatch.setattr("grasp_deploy.bench.record.memory_bytes", lambda free: 1000)
    with pytest.raises(InputError, match="2 models side by side"):
        measured(models, engine=engine, enforce_eager=engine == "vllm")


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(("release", "blocks"), [("0.32.0+cpu", 5 * 128), ("0.32.0", 9 * 16)])
def test_vllms_cache_holds_the_largest_batch_of_every_model(
    release: str, blocks: int, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path / "few", num_key_value_heads=1)
    pretend(monkeypatch, lambda _: release)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    every = [tmp_path / "few", *models]
    settings = measured(every, engine="vllm", device="auto", repetitions=1).settings
    assert settings.kv_memory_bytes == blocks * KV_BYTES_PER_TOKEN
    assert settings.device == ("cpu" if "cpu" in release else "cuda")


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"engine": "vllm", "device": "cuda"}, "--device cuda"),
        ({"engine": "vllm", "device": "auto", "kv_memory_bytes": 1000}, "--kv-memory of 1,000"),
        ({"engine": "vllm", "device": "auto", "enforce_eager": False}, "no-such-compiler"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    changes: dict[str, Any], culprit: str, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    monkeypatch.setattr("grasp_deploy.bench.throughput.child", None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match=culprit):
        measured(models, **{"enforce_eager": True, **changes})


def test_one_step_may_prefill_the_largest_batch() -> None:
    settings = to_builtins(ThroughputSettings("vllm", (1, 2), prompt_tokens=24, new_tokens=8))
    engine = vllm_arguments("model", "float32", True, settings)
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (2, 48)
    assert engine["max_model_len"] == 32
    assert engine["load_format"] == "dummy" and engine["enable_prefix_caching"] is False


@pytest.mark.slow
def test_the_command_writes_the_record_that_it_prints(models: list[Path], tmp_path: Path) -> None:
    config = tmp_path / "small.json"
    config.write_text((models[0] / "config.json").read_text())
    options = ("--engine", "transformers", "--random-weights", "--repetitions", "2", *SMALL)
    output = ("--json", "-o", tmp_path / "record.json")
    on = ("--device", "cpu")
    record = document("bench", "throughput", config, models[1], *on, *options, *output)
    assert record == read_record(tmp_path / "record.json")
    assert [model["name"] for model in record["models"]] == ["small", "narrow"]
    assert record["settings"]["batches"] == [1, 3] and record["settings"]["random_weights"]
    for cell in record["cells"]:
        assert len(cell["samples"]) == 2
        assert (cell["prompt_tokens"], cell["new_tokens"]) == (16, 4)
        for sample in cell["samples"]:
            whole = sample["ttft_seconds"] + 3 * sample["tpot_seconds"]
            assert 0 < sample["ttft_seconds"] < sample["seconds"] == pytest.approx(whole)


@pytest.mark.vllm
def test_vllm_measures_two_models_side_by_side(
    demo_model: Path, demo_checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "record.json"
    options = ("--enforce-eager", "--repetitions", "2", "-o", output)
    ended = succeeded("bench", "throughput", demo_model, demo_checkpoint, *SMALL, *options)
    assert "model" in ended.stdout and "tokens/s" in ended.stdout
    cells = read_record(output)["cells"]
    points = [(name, batch) for batch in (1, 3) for name in ("model", "pruned")]
    assert [(cell["model"], cell["batch"]) for cell in cells] == points
    for cell in cells:
        assert len(cell["samples"]) == 2
        assert all(0 < s["ttft_seconds"] < s["seconds"] for s in cell["samples"])
