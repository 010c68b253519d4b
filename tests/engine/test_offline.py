"""vLLM's engine in a child: the last link of `verify`, and what it does not run."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.footprint import Load
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS, installed_platform
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.engine import offline
from grasp_deploy.engine.offline import greedy_tokens, measured_capacity, predict_capacity
from grasp_deploy.errors import InputError
from tests.installed import pretend
from tests.tiny import save_tiny


@pytest.mark.vllm
def test_verify_compares_what_is_served(demo_checkpoint: Path) -> None:
    checks = list(verify(demo_checkpoint, served=greedy_tokens))
    assert [check.name for check in checks][-1] == "served"
    assert all(check.ok for check in checks), checks


@pytest.mark.vllm
def test_layers_that_see_a_window_share_the_pool(tmp_path: Path) -> None:
    """As Gemma-3-270m's: six groups of layers draw from one pool, and blocks counted six times."""
    kinds = 5 * ["sliding_attention"] + ["full_attention"]
    config: dict[str, Any] = {"num_hidden_layers": 6, "layer_types": kinds, "sliding_window": 64}
    save_tiny("gemma3_text", tmp_path, **config, max_position_embeddings=8192)
    load = Load(4, 8192, block_tokens=BLOCK_TOKENS[installed_platform()])
    engine = {"dtype": "float32", "kv_cache_memory_bytes": 2**26, "max_num_batched_tokens": 2048}
    held, shape = measured_capacity(tmp_path, engine), model_shape(read_config(tmp_path))
    sizes = shape.kv_bytes_per_token(), load.blocks_each(shape.windows), load.block_tokens
    assert predict_capacity(2**26, *sizes) == held


def test_models_that_cannot_be_served_are_refused_before_vllm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    save_tiny("llama", tmp_path, head_dim=8)
    with pytest.raises(InputError, match="the model's heads are 8 wide"):
        greedy_tokens(tmp_path, [[1]], 8)


def test_no_share_of_a_gpu_has_to_be_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has a size, and models that this process compared still lie on the GPU."""
    pretend(monkeypatch, lambda _: "0.32.0")
    save_tiny("llama", tmp_path)
    asked: list[dict[str, Any]] = []

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["engine"])
        return {"tokens": [[1]]}

    monkeypatch.setattr(offline, "child", lambda *_, **__: nullcontext(ask))
    assert greedy_tokens(tmp_path, [[1]], 1) == [[1]]
    assert asked[0]["gpu_memory_utilization"] == 0.01 and asked[0]["kv_cache_memory_bytes"]
