"""What a deployment is predicted to hold, where no vLLM says it."""

from pathlib import Path

import pytest

from grasp_deploy.checkpoint.footprint import Load, Room, deployment_memory
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.engine.offline import KvCapacity
from grasp_deploy.fit import memory
from tests.tiny import tiny_config


@pytest.mark.parametrize("family", ["llama", "qwen3_5_text"])
def test_a_room_made_for_a_load_holds_it_and_no_more(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the states of linear attention, which a sequence has whatever its length."""
    monkeypatch.setattr(memory, "found_platform", lambda: None)
    tiny_config(family, dtype="bfloat16").to_json_file(tmp_path / "config.json")
    shape, load = model_shape(read_config(tmp_path)), Load(8, 64)
    wanted = deployment_memory(shape, load, 2**20)
    asked = Room(0, 0.9, 0).memory_for(wanted.total_bytes)
    config = CompressConfig("m", gpu_memory=f"{asked}B", concurrency=8, context=64, overhead="1MiB")
    predicted = memory.serve_fit(tmp_path, config).predicted
    assert predicted.capacity == KvCapacity(load.cached_tokens(shape.windows), load.sequences)
    assert predicted.kv_bytes == wanted.kv_bytes
