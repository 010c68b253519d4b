"""`bench kv`: what a memory holds, predicted and as a running vLLM says."""

import json
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench import limits
from grasp_deploy.bench.kv import run as kv
from grasp_deploy.bench.kv.table import kv_table
from grasp_deploy.checkpoint.read.config_file import read_config_at
from grasp_deploy.engine.offline import KvCapacity, predict_capacity
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from tests.bench.records import lines_of, typed
from tests.cli.command import assert_refused, grasp_deploy
from tests.tiny import pruned_config, tiny_config

KV_HEADS, LAYERS, HEAD_DIM, WIDTH = 4, 3, 32, 2
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * WIDTH
MEMORY = 64 * 2**20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A config file, and a folder with half of its KV groups, not the same number in each layer."""
    folder = tmp_path_factory.mktemp("models")
    dense = tiny_config("llama", num_key_value_heads=KV_HEADS, dtype="bfloat16")
    dense.to_json_file(folder / "dense.json")
    pruned: Any = pruned_config(dense, [(1, 96), (3, 64), (2, 32)])
    pruned.architectures = ["GraspLlamaForCausalLM"]
    pruned.save_pretrained(folder / "half")
    return [folder / "dense.json", folder / "half"]


def kv_heads(folder: Path) -> list[int]:
    layers = read_config_at(folder)["per_layer_config"].values()
    return [layer["num_key_value_heads"] for layer in layers]


def kv_record(models: list[Path], *options: str) -> dict[str, Any]:
    ended = grasp_deploy(
        "bench", "kv", *models, "--random-weights", "--memory", "64MiB", *options, "--json"
    )
    assert ended.code == 0, ended.stderr
    record: dict[str, Any] = json.loads(ended.stdout)
    return record


@pytest.fixture(scope="module")
def predicted(models: list[Path]) -> dict[str, Any]:
    return kv_record(models, "--context", "500", "--predict-only", "--seed", "3")


def test_the_record_says_what_was_asked(models: list[Path], predicted: dict[str, Any]) -> None:
    assert (predicted["schema_version"], predicted["benchmark"]) == (1, "kv")
    settings = predicted["settings"]
    assert settings.pop("block_tokens") in (16, 128)
    assert settings == {
        "memory_bytes": MEMORY,
        "context_tokens": 500,
        "predict_only": True,
        "dtype": "auto",
        "seed": 3,
        "random_weights": True,
    }
    assert [cell["model"] for cell in predicted["cells"]] == ["dense", models[1].name]
    assert all(cell["measured"] is None for cell in predicted["cells"])


def test_a_cache_gets_what_the_weights_leave(models: list[Path], predicted: dict[str, Any]) -> None:
    for model, cell in zip(predicted["models"], predicted["cells"], strict=True):
        assert cell["memory_bytes"] == MEMORY - model["footprint"]["weight_bytes"]
        assert cell["kv_bytes_per_token"] == sum(cell["layer_kv_bytes_per_token"])
        left = cell["memory_bytes"] - cell["predicted"]["cached_tokens"] * TOKEN_BYTES
        if cell["model"] == "dense":
            assert 0 <= left < 128 * TOKEN_BYTES
    dense, pruned = predicted["cells"]
    assert dense["layer_kv_bytes_per_token"] == [TOKEN_BYTES // LAYERS] * LAYERS
    rows = [heads * 2 * HEAD_DIM * WIDTH for heads in kv_heads(models[1])]
    assert pruned["layer_kv_bytes_per_token"] == rows
    assert dense["kv_bytes_per_token"] == 2 * pruned["kv_bytes_per_token"] == TOKEN_BYTES


def test_sequences_take_whole_blocks() -> None:
    # 10 blocks of 16 tokens at 3 bytes each, and a rest
    assert predict_capacity(10 * 48 + 47, 3, 16, 16) == KvCapacity(160, 10)
    assert predict_capacity(10 * 48, 3, 17, 16) == KvCapacity(160, 5)
    assert predict_capacity(10 * 48, 3, 160, 16) == KvCapacity(160, 1)
    assert predict_capacity(10 * 48, 3, 161, 16) == KvCapacity(160, 0)


@pytest.mark.vllm
def test_a_running_vllm_holds_what_was_predicted(models: list[Path]) -> None:
    """The dense model has twice the KV heads of the pruned one: it shows twice the KV bytes."""
    record = kv_record(models, "--context", "500")
    dense, pruned = record["cells"]
    shown_bytes = {}
    for cell in (dense, pruned):
        assert cell["measured"] == cell["predicted"]
        shown = cell["memory_bytes"] / cell["measured"]["cached_tokens"]
        assert shown == pytest.approx(cell["kv_bytes_per_token"], rel=0.005)
        shown_bytes[cell["model"]] = shown
    dense_bytes, pruned_bytes = shown_bytes.values()
    assert dense_bytes == pytest.approx(2 * pruned_bytes, rel=0.005)
    text = table_text(record)
    assert text.count("vLLM") == 2 and "predicted only" not in text


def table_text(record: dict[str, Any]) -> str:
    return "\n".join(lines_of(kv_table(typed(record))))


def test_the_table_fits_and_shows_each_figure(predicted: dict[str, Any]) -> None:
    text = table_text(predicted)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert "predicted only: no vLLM was asked" in text and "64 MiB" in text
    for cell in predicted["cells"]:
        assert f"{cell['kv_bytes_per_token']:,}" in text
        assert f"{cell['memory_bytes'] / 2**20:,.1f}" in text
        assert all(f"{figure:,}" in text for figure in cell["predicted"].values())
    assert "-50.0%" in text  # the bytes of a token


def test_without_vllm_there_is_a_prediction(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise InputError("vLLM is not installed")

    monkeypatch.setattr(kv, "installed_platform", absent)
    record = kv_record(models)
    assert [cell["measured"] for cell in record["cells"]] == [None, None]
    assert record["settings"]["block_tokens"] == 16
    assert record["settings"]["context_tokens"] == 512, "what the models were made for"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory", "much"), ("--memory 'much' is not a size",)),
        (("--memory", "1KiB"), ("--memory holds 0.0 MiB", "dense's weights", "more memory")),
        (("--context", "513"), ("513 tokens of --context", "512 positions", "dense")),
    ],
)
def test_bad_options_are_refused(
    options: tuple[str, ...], words: tuple[str, ...], models: list[Path]
) -> None:
    given = ("--random-weights", "--predict-only", "--context", "500", *options)
    assert_refused(grasp_deploy("bench", "kv", models[0], *given), *words)


def test_more_memory_than_there_is_is_refused(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "installed_platform", lambda: "cpu")
    monkeypatch.setattr(limits, "available_memory_bytes", lambda: 2**30)
    options = ("--random-weights", "--memory", "2GiB", "--context", "500")
    assert_refused(
        grasp_deploy("bench", "kv", models[0], *options),
        "2.0 GiB",
        "1.0 GiB are free",
        "--predict-only",
    )


def test_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="no model is named"):
        bench_models([])
