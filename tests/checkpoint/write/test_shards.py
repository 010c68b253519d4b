"""Shards hold as many whole tensors as fit into the size asked for."""

from __future__ import annotations

import torch

from grasp_deploy.checkpoint.write.shards import TensorLayout, plan_shards

FOUR_BYTES = TensorLayout(torch.float32, (1,))


def test_no_shard_is_larger_than_asked_unless_one_tensor_is() -> None:
    layouts = {name: FOUR_BYTES for name in "abc"} | {"d": TensorLayout(torch.float32, (5,))}
    assert list(plan_shards(layouts, 10).values()) == [["a", "b"], ["c"], ["d"]]
    assert list(plan_shards(layouts, 8).values()) == [["a", "b"], ["c"], ["d"]]
    assert plan_shards(layouts, 100) == {"model.safetensors": ["a", "b", "c", "d"]}
