"""`bench throughput`: rounds in which every model has its turn, and one record of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench import limits
from grasp_deploy.bench.throughput.engines import MODULES, kv_pool_bytes
from grasp_deploy.bench.throughput.run import bench_throughput, rounds
from grasp_deploy.bench.throughput.settings import ThroughputSettings
from grasp_deploy.engine import vllm_process
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, bench_models
from grasp_deploy.files.record import read_record
from tests.bench.commands import bench
from tests.cli.command import REPOSITORY
from tests.tiny import save_tiny

SMALL = ("--prompt-tokens", 16, "--new-tokens", 4, "--batch", "1,3")
KV_BYTES_PER_TOKEN = 2 * 3 * 2 * 32 * 4  # K and V, layers, heads, width, float32
TRANSFORMERS = ("--engine", "transformers", "--device", "cpu")


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
    for engine in MODULES:
        monkeypatch.setitem(MODULES, engine, "tests.bench.throughput.fake_engine")
    return log


def settings(**changes: Any) -> ThroughputSettings:
    few = {"engine": "transformers", "batches": (1, 4), "prompt_tokens": 16, "new_tokens": 4}
    return ThroughputSettings(**{**few, "device": "cpu", **changes})


def of(models: list[Path]) -> list[BenchModel]:
    return bench_models([str(path) for path in models])


def test_turns_alternate() -> None:
    assert rounds(3, 4) == [[0, 1, 2], [2, 1, 0], [0, 1, 2], [2, 1, 0]]


def test_samples_pair_up_and_interleave(models: list[Path], fake_engine: Path) -> None:
    seen: list[dict[str, Any]] = []
    record = bench_throughput(of(models), settings(repetitions=3), ["bench"], seen.append)
    points = [(cell.model, cell.batch) for cell in record.cells]
    assert points == [("wide", 1), ("narrow", 1), ("wide", 4), ("narrow", 4)]
    assert [len(cell.samples) for cell in record.cells] == [3] * 4
    turns = [json.loads(line) for line in fake_engine.read_text().splitlines()]
    rounds_of_one_batch = [("wide", 0), ("narrow", 0), ("wide", 1), ("narrow", 1)]
    rounds_of_one_batch += [("narrow", 2), ("wide", 2), ("wide", 3), ("narrow", 3)]
    expected = [[[name], batch, seed] for batch in (1, 4) for name, seed in rounds_of_one_batch]
    assert turns == expected
    steps = [row["step"] for row in seen if row["stage"] == "measuring"]
    assert steps == list(range(17)) and seen[-1]["steps"] == 16


@pytest.mark.usefixtures("fake_engine")
def test_a_batch_that_does_not_fit_costs_only_its_own_cells(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LARGEST_BATCH", "2")
    record = bench_throughput(of(models), settings(), ["bench"])
    assert [len(cell.samples) for cell in record.cells] == [3, 3, 0, 0]
    assert record.cells[2].refused == "4 prompts do not fit: take smaller batches"
    assert record.cells[0].refused is None
    with pytest.raises(InputError, match=r"^4 prompts do not fit"):
        bench_throughput(of(models), settings(batches=(4,)), ["bench"])


@pytest.mark.usefixtures("fake_engine")
def test_models_that_do_not_fit_side_by_side_are_refused(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FREE_MEMORY", "1000")
    with pytest.raises(InputError, match=r"^2 models side by side take .* fewer models at a time$"):
        bench_throughput(of(models), settings(), ["bench"])
    monkeypatch.delenv("FAKE_FREE_MEMORY")
    monkeypatch.setattr(limits, "available_memory_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"0\.0 GiB are free"):
        bench_throughput(of(models), settings(), ["bench"])


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_process, "version", lambda _: "0.32.0+cpu")


@pytest.mark.usefixtures("fake_engine")
def test_vllm_for_gpus_needs_one(models: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_process, "version", lambda _: "0.32.0")
    with pytest.raises(InputError, match=r"needs a GPU and none is visible .* transformers$"):
        bench_throughput(of(models), settings(engine="vllm", device="auto"), ["bench"])
    monkeypatch.setenv("FAKE_FREE_MEMORY", str(2**40))
    record = bench_throughput(of(models), settings(engine="vllm", device="auto"), ["bench"])
    assert record.settings.kv_memory_bytes == (4 * 2 + 1) * 16 * KV_BYTES_PER_TOKEN


@pytest.mark.usefixtures("fake_engine")
def test_vllms_cache_holds_the_largest_batch_of_the_first_model(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch)
    record = bench_throughput(of(models), settings(engine="vllm", device="auto"), ["bench"])
    assert record.settings.kv_memory_bytes == (4 + 1) * 128 * KV_BYTES_PER_TOKEN
    assert record.settings.device == "cpu"
    given = settings(engine="vllm", device="auto", kv_memory_bytes=2**22)
    record = bench_throughput(of(models), given, ["bench"])
    assert record.settings.kv_memory_bytes == 2**22


def test_pools_are_of_whole_blocks(models: list[Path]) -> None:
    shape = of(models)[0].shape
    assert kv_pool_bytes(shape, 2, 16, 16) == 3 * 16 * KV_BYTES_PER_TOKEN
    assert kv_pool_bytes(shape, 2, 17, 16) == 5 * 16 * KV_BYTES_PER_TOKEN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "trt"}, "--engine trt is unknown: use vllm or transformers"),
        ({"prompt_tokens": 600}, "exceed the 512 positions that wide was made for: lower"),
        ({"kv_memory_bytes": 2**30}, "--kv-memory is an option of vLLM: leave it out"),
        ({"enforce_eager": True}, "--enforce-eager is an option of vLLM: leave it out"),
        ({"device": "tpu"}, "--device tpu"),
        ({"engine": "vllm", "device": "cuda"}, "--device cuda: the installed vLLM computes on cpu"),
        (
            {"engine": "vllm", "device": "auto", "kv_memory_bytes": 1000},
            "--kv-memory of 1,000 bytes does not hold one sequence of 20 tokens of wide: give",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    changes: dict[str, Any], message: str, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch)
    monkeypatch.setattr("grasp_deploy.bench.throughput.run.child", None)
    with pytest.raises(InputError) as caught:
        bench_throughput(of(models), settings(**changes), ["bench"])
    assert message in str(caught.value)


def test_a_machine_without_a_compiler_is_told_to_go_without(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu(monkeypatch)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match=r"no-such-compiler, .* give --enforce-eager"):
        bench_throughput(of(models), settings(engine="vllm", device="auto"), ["bench"])


@pytest.mark.slow
def test_the_command_writes_the_record_that_it_prints(models: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    ended = bench("throughput", *models, *SMALL, *TRANSFORMERS, "--json", "-o", output)
    record = json.loads(ended.stdout)
    assert ended.code == 0 and record == read_record(output)
    assert record["benchmark"] == "throughput" and record["schema_version"] == 1
    assert [model["name"] for model in record["models"]] == ["wide", "narrow"]
    assert record["settings"]["batches"] == [1, 3] and record["settings"]["repetitions"] == 3
    for cell in record["cells"]:
        assert cell["engine"] == "transformers" and cell["model"] in ("wide", "narrow")
        assert (cell["prompt_tokens"], cell["new_tokens"]) == (16, 4)
        assert len(cell["samples"]) == 3
        for sample in cell["samples"]:
            assert sample["joules"] is None
            whole = sample["ttft_seconds"] + 3 * sample["tpot_seconds"]
            assert 0 < sample["ttft_seconds"] < sample["seconds"] == pytest.approx(whole)


@pytest.mark.slow
def test_random_weights_need_no_weights_and_the_table_fits(
    models: list[Path], tmp_path: Path
) -> None:
    config = tmp_path / "small.json"
    config.write_text((models[0] / "config.json").read_text())
    small = ("--prompt-tokens", 8, "--new-tokens", 2, "--batch", 2, "--repetitions", 1)
    ended = bench("throughput", config, *small, *TRANSFORMERS, "--random-weights")
    assert ended.code == 0
    assert "small" in ended.stdout and "tokens/s" in ended.stdout


@pytest.mark.vllm
def test_vllm_measures_two_models_side_by_side(
    demo_model: Path, demo_checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "record.json"
    options = ("--enforce-eager", "--repetitions", 2, "-o", output)
    ended = bench("throughput", demo_model, demo_checkpoint, *SMALL, *options)
    assert ended.code == 0, ended.stderr
    record = read_record(output)
    assert [(c["model"], c["batch"]) for c in record["cells"]] == [
        *(("model", 1), ("pruned", 1)),
        *(("model", 3), ("pruned", 3)),
    ]
    for cell in record["cells"]:
        assert cell["engine"] == "vllm" and len(cell["samples"]) == 2
        assert all(0 < s["ttft_seconds"] < s["seconds"] for s in cell["samples"])
        assert all(s["tpot_seconds"] > 0 for s in cell["samples"])
