"""Costs against what cutting one unit really removes, and against the paper's alpha."""

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.slicing import cut_expert, cut_tensor, layer_cut
from tests.tiny import VARIANTS, stated, tiny_config


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-mha", "llama-biases", "qwen2", "qwen3-biases", "qwen3-moe", "qwen3-5"],
)
def test_a_unit_costs_the_parameters_that_cutting_it_removes(name: str) -> None:
    shape = model_shape(stated(tiny_config(**VARIANTS[name])))
    units = unit_table(shape)
    of_kinds = {units.ffn(1).start: shape.ffn_parameters, units.kv(1).start: shape.kv_parameters}
    for unit, cost in of_kinds.items():
        kept = torch.ones(units.size, dtype=torch.bool)
        kept[unit] = False
        cut = layer_cut(units, 1, kept, torch.ones(units.size))
        prefix = "model.layers.1."
        tensors = {
            key.removeprefix(prefix): torch.empty(size)
            for key, size in shape.tensor_shapes().items()
            if key.startswith(prefix)
        }
        left = [cut_expert(name, tensor, cut) for name, tensor in tensors.items()]
        left_numbers = sum(cut_tensor(*kept, cut).numel() for kept in left if kept)
        assert sum(t.numel() for t in tensors.values()) - left_numbers == cost > 0


def test_the_ratio_of_parameters_is_the_papers_alpha() -> None:
    for group, head_dim in ((1, 128), (4, 64)):
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8 // group, "head_dim": head_dim}
        shape = model_shape(stated(tiny_config("llama", **heads)))
        alpha = (2 * group + 2) * head_dim / 3
        assert shape.kv_parameters / shape.ffn_parameters == alpha
