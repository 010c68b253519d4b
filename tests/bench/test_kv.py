"""`bench kv`: what a memory holds, predicted and as a running vLLM says."""

from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench import kv
from grasp_deploy.bench.kv_show import headlines, tables
from grasp_deploy.engine.offline import KvCapacity, predict_capacity
from tests.bench import records
from tests.bench.records import lines_of, typed
from tests.cli.command import document
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


def kv_record(models: list[Path], *options: str) -> dict[str, Any]:
    memory = ("--random-weights", "--gpu-memory", "64MiB", "--json")
    return document("bench", "kv", *models, *memory, *options)


def table_text(record: dict[str, Any]) -> str:
    return "\n".join(lines_of(tables(typed(record))[0]))


def test_a_cache_gets_what_the_weights_leave(models: list[Path]) -> None:
    record = kv_record(models, "--context", "500", "--predict-only")
    assert record["settings"]["block_tokens"] in (16, 128)
    assert record["settings"]["context_tokens"] == 500 and record["settings"]["random_weights"]
    text = table_text(record)
    assert "predicted only: no vLLM was asked" in text and "64.00 MiB" in text
    for model, cell in zip(record["models"], record["cells"], strict=True):
        assert cell["model"] == model["name"] and cell["measured"] is None
        assert cell["memory_bytes"] == MEMORY - model["footprint"]["weight_bytes"]
        figures = (cell["kv_bytes_per_token"], *cell["predicted"].values())
        assert all(f"{figure:,}" in text for figure in figures)
    dense, pruned = record["cells"]
    left = dense["memory_bytes"] - dense["predicted"]["cached_tokens"] * TOKEN_BYTES
    assert 0 <= left < 128 * TOKEN_BYTES
    assert dense["kv_bytes_per_token"] == 2 * pruned["kv_bytes_per_token"] == TOKEN_BYTES


def test_sequences_take_whole_blocks() -> None:
    # 10 blocks of 16 tokens at 3 bytes each, and a rest
    assert predict_capacity(10 * 48 + 47, 3, 1, 16) == KvCapacity(160, 10)
    assert predict_capacity(10 * 48, 3, 2, 16) == KvCapacity(160, 5)
    assert predict_capacity(10 * 48, 3, 11, 16) == KvCapacity(160, 0)
    # The state of a sequence as well, of two blocks, and of a byte more.
    assert predict_capacity(10 * 48, 3, 2, 16, 96) == KvCapacity(96, 2)
    assert predict_capacity(10 * 48, 3, 2, 16, 97) == KvCapacity(80, 2)


def test_a_cache_holds_the_states_of_linear_attention(tmp_path: Path) -> None:
    stated = tiny_config("qwen3_5_text", dtype="bfloat16")
    stated.to_json_file(tmp_path / "config.json")
    record = kv_record([tmp_path / "config.json"], "--context", "500", "--predict-only")
    ((model,), (cell,)) = record["models"], record["cells"]
    tokens, sequences = cell["predicted"].values()
    used = tokens * cell["kv_bytes_per_token"]
    used += sequences * model["footprint"]["state_bytes_per_sequence"]
    block_bytes = record["settings"]["block_tokens"] * cell["kv_bytes_per_token"]
    assert 0 <= cell["memory_bytes"] - used < block_bytes


@pytest.mark.vllm
def test_a_running_vllm_holds_what_was_predicted(models: list[Path]) -> None:
    record = kv_record(models, "--context", "500")
    for cell in record["cells"]:
        assert cell["measured"] == cell["predicted"]
        shown = cell["memory_bytes"] / cell["measured"]["cached_tokens"]
        assert shown == pytest.approx(cell["kv_bytes_per_token"], rel=0.005)
    text = table_text(record)
    assert "predicted only" not in text


def test_without_vllm_there_is_a_prediction(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "found_platform", lambda: None)
    record = kv_record(models)
    assert [cell["measured"] for cell in record["cells"]] == [None, None]
    assert record["settings"]["block_tokens"] == 16
    assert record["settings"]["context_tokens"] == 512, "what the models were made for"


@pytest.mark.parametrize(("missing", "outcome"), [(127, "as predicted"), (128, "not as predicted")])
def test_a_block_that_is_not_full_is_as_predicted(missing: int, outcome: str) -> None:
    document = records.kv_record([records.model("dense")])
    cell = document["cells"][0]
    cell["measured"]["cached_tokens"] = cell["predicted"]["cached_tokens"] - missing
    assert next(headlines(typed(document)))["outcome"] == outcome
