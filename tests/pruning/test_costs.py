"""Costs against what cutting one unit really removes, and against the paper's alpha."""

from __future__ import annotations

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.costs import (
    Widths,
    kv_bytes_cost,
    latency_cost,
    memory_cost,
    parameters_cost,
)
from grasp_deploy.pruning.slicing import cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable
from tests.tiny import VARIANTS, tiny_config

LLAMA_2_7B = Widths(4096, 128, 1, False, False, 2, 2)
UNITS = UnitTable.of_layers([(3, 2), (3, 2)])


@pytest.mark.parametrize("name", ["llama", "llama-mha", "llama-biases", "qwen2", "qwen3-biases"])
def test_a_unit_costs_the_parameters_that_cutting_it_removes(name: str) -> None:
    shape = model_shape(tiny_config(**VARIANTS[name]).to_dict())
    units, group, head_dim = unit_table(shape), shape.query_heads_per_group, shape.head_dim
    biases = shape.qkv_bias, shape.mlp_bias
    costs = parameters_cost(units, Widths(shape.hidden_size, head_dim, group, *biases, 4, 4))
    for unit in (units.ffn(1).start, units.kv(1).start):
        kept = torch.ones(units.size, dtype=torch.bool)
        kept[unit] = False
        cut = layer_cut(units, 1, kept, torch.ones(units.size), group, head_dim)
        prefix = "model.layers.1."
        tensors = {
            key.removeprefix(prefix): torch.empty(size)
            for key, size in shape.tensor_shapes().items()
            if key.startswith(prefix)
        }
        removed = sum(t.numel() - cut_tensor(key, t, cut).numel() for key, t in tensors.items())
        assert removed == costs[unit] > 0


def test_the_ratio_of_parameters_is_the_papers_alpha() -> None:
    for group, head_dim in ((1, 128), (4, 64)):
        widths = Widths(4096, head_dim, group, False, False, 2, 2)
        alpha = (2 * group + 2) * head_dim / 3
        assert widths.kv_parameters / widths.ffn_parameters == alpha


def test_kv_bytes_cost_nothing_for_channels() -> None:
    costs = kv_bytes_cost(UNITS, LLAMA_2_7B)
    assert costs.tolist() == [0, 0, 0, 512, 512] * 2  # key and value, 128 wide, 2 bytes each


def test_memory_adds_the_weights_and_the_cached_tokens() -> None:
    ffn, kv = 3 * 4096 * 2, 4 * 128 * 4096 * 2
    expected = [ffn, ffn, ffn, kv + 1000 * 512, kv + 1000 * 512] * 2
    assert memory_cost(UNITS, LLAMA_2_7B, 1000).tolist() == expected


def test_units_of_a_kind_have_equal_shares_of_its_seconds() -> None:
    assert latency_cost(UNITS, 3.0, 2.0).tolist() == [0.5e9] * 10
