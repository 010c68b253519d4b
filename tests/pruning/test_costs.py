"""Costs against what cutting one unit really removes, and against the paper's alpha."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.costs import Widths
from grasp_deploy.pruning.slicing import cut_expert, cut_tensor, layer_cut
from tests.tiny import VARIANTS, stated, tiny_config


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-mha", "llama-biases", "qwen2", "qwen3-biases", "qwen3-moe", "qwen3-5"],
)
def test_a_unit_costs_the_parameters_that_cutting_it_removes(name: str) -> None:
    shape = model_shape(stated(tiny_config(**VARIANTS[name])))
    units, group, head_dim = unit_table(shape), shape.query_heads_per_group, shape.head_dim
    d, ffn_parameters = shape.hidden_size, shape.ffn_parameters
    widths = Widths(d, head_dim, group, shape.qkv_bias, ffn_parameters, 4, 4)
    widths = replace(widths, output_gate=shape.family.is_hybrid)
    of_kinds = {units.ffn(1).start: widths.ffn_parameters, units.kv(1).start: widths.kv_parameters}
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
        widths = Widths(4096, head_dim, group, False, 3 * 4096, 2, 2)
        alpha = (2 * group + 2) * head_dim / 3
        assert widths.kv_parameters / widths.ffn_parameters == alpha
