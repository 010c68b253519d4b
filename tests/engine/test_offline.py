"""Real vLLM engines: the last link of `verify`, and two tensor-parallel workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.verify_answers import greedy_tokens as greedy_with_transformers
from grasp_deploy.engine.offline import greedy_tokens
from grasp_deploy.errors import InputError
from tests.installed import pretend
from tests.tiny import save_tiny, slice_by_hand


@pytest.mark.vllm
def test_verify_compares_what_is_served(demo_checkpoint: Path) -> None:
    checks = list(verify(demo_checkpoint, served=greedy_tokens))
    assert [check.name for check in checks][-1] == "served"
    assert all(check.ok for check in checks), checks


@pytest.mark.vllm
def test_two_workers_give_the_tokens_of_one(tmp_path: Path) -> None:
    dense = save_tiny("llama", tmp_path)
    # Of a layer with one group both workers hold the key and value, and one query head each.
    groups = [([0, 1], range(96)), ([1], range(64)), ([0, 1], range(32))]
    pruned = slice_by_hand(dense, groups)
    pruned.save_pretrained(tmp_path)
    prompts = torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(1))
    expected = greedy_with_transformers(pruned, prompts, 32)
    assert greedy_tokens(tmp_path, prompts.tolist(), 32, tensor_parallel=2) == expected


def test_models_that_cannot_be_served_are_refused_before_vllm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    save_tiny("llama", tmp_path)
    with pytest.raises(InputError, match="tensor-parallel size 3 does not divide the KV groups"):
        greedy_tokens(tmp_path, [[1]], 8, tensor_parallel=3)
    save_tiny("llama", tmp_path, head_dim=8)
    with pytest.raises(InputError, match="the model's heads are 8 wide"):
        greedy_tokens(tmp_path, [[1]], 8)
