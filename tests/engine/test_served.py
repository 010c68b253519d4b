"""Real vLLM engines: the last link of `verify`, and two tensor-parallel workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.verify import greedy_tokens as greedy_with_transformers
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.engine.greedy import greedy_tokens
from tests.tiny import save_tiny, slice_by_hand

pytestmark = pytest.mark.vllm


def test_verify_compares_what_is_served(demo_checkpoint: Path) -> None:
    def served(directory: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        return greedy_tokens(directory, prompts, new_tokens).tokens

    checks = list(verify(demo_checkpoint, served=served))
    assert [check.name for check in checks][-1] == "served"
    assert all(check.ok for check in checks), checks


def test_two_workers_give_the_tokens_of_one(tmp_path: Path) -> None:
    dense = save_tiny("llama", tmp_path)
    groups = [([0, 1], range(channels)) for channels in (96, 64, 32)]
    pruned = slice_by_hand(dense, groups)
    pruned.save_pretrained(tmp_path)
    prompts = torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(1))
    expected = greedy_with_transformers(pruned, prompts, 32)
    assert greedy_tokens(tmp_path, prompts.tolist(), 32, tensor_parallel=2).tokens == expected
