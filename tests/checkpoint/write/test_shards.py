"""Shards hold as many whole tensors as fit into the size asked for."""

from __future__ import annotations

from pathlib import Path

import torch

from grasp_deploy.checkpoint.write.shards import TensorLayout, plan_shards, write_shards

FOUR_BYTES = TensorLayout(torch.float32, (1,))


def test_no_shard_is_larger_than_asked_unless_one_tensor_is() -> None:
    layouts = {name: FOUR_BYTES for name in "abc"} | {"d": TensorLayout(torch.float32, (5,))}
    assert list(plan_shards(layouts, 10).values()) == [["a", "b"], ["c"], ["d"]]
    assert list(plan_shards(layouts, 8).values()) == [["a", "b"], ["c"], ["d"]]
    assert plan_shards(layouts, 100) == {"model.safetensors": ["a", "b", "c", "d"]}


def test_data_starts_on_a_multiple_of_eight_bytes(tmp_path: Path) -> None:
    for length in range(1, 9):  # of the name, and so of the header
        tensors = [("w" * length, torch.ones(1))]
        list(write_shards(tmp_path, {tensors[0][0]: FOUR_BYTES}, tensors, 100))
        content = (tmp_path / "model.safetensors").read_bytes()
        assert int.from_bytes(content[:8], "little") % 8 == 0
