"""What real vLLM engines do with checkpoints that `compress` made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.verify import greedy_tokens as greedy_with_transformers
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.engine.greedy import greedy_tokens
from grasp_deploy.engine.serve import check_before_serving
from grasp_deploy.errors import InputError

PROMPTS = torch.randint(2048, (8, 16), generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.vllm


def test_verify_compares_what_is_served(demo_checkpoint: Path) -> None:
    def served(directory: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        return greedy_tokens(directory, prompts, new_tokens).tokens

    checks = list(verify(demo_checkpoint, served=served))
    assert [check.name for check in checks][-1] == "served"
    assert all(check.ok for check in checks), checks


def test_two_workers_give_the_tokens_of_one(short_config: CompressConfig, tmp_path: Path) -> None:
    output = tmp_path / "for-two"
    compress(replace(short_config, tensor_parallel=2), output)
    for layer in model_shape(read_config(output)).layers:
        assert not any(size % 2 for size in vars(layer).values())
    expected = greedy_with_transformers(load(output), PROMPTS, 32)
    assert greedy_tokens(output, PROMPTS.tolist(), 32, tensor_parallel=2).tokens == expected


def test_a_checkpoint_that_two_workers_cannot_share_is_refused(
    short_config: CompressConfig, tmp_path: Path
) -> None:
    """15 of 24 KV groups are kept: some layer keeps an odd number."""
    quick = replace(short_config, rounds=1, scale_epochs=0, compensation=False)
    compress(replace(quick, targets="kv", keep=15.5 / 24), tmp_path / "odd")
    layers = model_shape(read_config(tmp_path / "odd")).layers
    odd = [i for i, layer in enumerate(layers) if layer.num_key_value_heads % 2]
    assert odd, "this test needs a layer with an odd number of KV heads"
    with pytest.raises(InputError, match=f"layers? {odd[0]}.*--tensor-parallel 2"):
        check_before_serving(tmp_path / "odd", ["--tensor-parallel-size", "2"])
