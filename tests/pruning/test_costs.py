"""Costs against what cutting one unit really removes, and against the paper's alpha."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.costs import Widths, kv_bytes_cost, memory_cost, parameters_cost
from grasp_deploy.pruning.slicing import cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable
from tests.tiny import VARIANTS, tiny_config

LLAMA_2_7B = Widths(4096, 128, 1, False, False, 2, 2)
UNITS = UnitTable.of_layers([(3, 2), (3, 2)])


def widths_of(shape: ModelShape) -> Widths:
    return Widths(
        hidden_size=shape.hidden_size,
        head_dim=shape.head_dim,
        query_heads_per_group=shape.query_heads_per_group,
        qkv_bias=shape.qkv_bias,
        mlp_bias=shape.mlp_bias,
        bytes_per_parameter=4,
        bytes_per_kv_value=4,
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_a_unit_costs_the_parameters_that_cutting_it_removes(name: str) -> None:
    variant = dict(VARIANTS[name])
    shape = model_shape(tiny_config(variant.pop("family"), **variant).to_dict())
    units = unit_table(shape)
    costs = parameters_cost(units, widths_of(shape))
    for unit in (units.ffn(1).start, units.kv(1).start):
        kept = torch.ones(units.size, dtype=torch.bool)
        kept[unit] = False
        group, head_dim = shape.query_heads_per_group, shape.head_dim
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
    for widths in (LLAMA_2_7B, replace(LLAMA_2_7B, query_heads_per_group=4, head_dim=64)):
        alpha = (2 * widths.query_heads_per_group + 2) * widths.head_dim / 3
        assert widths.kv_parameters / widths.ffn_parameters == alpha


def test_kv_bytes_cost_nothing_for_channels() -> None:
    costs = kv_bytes_cost(UNITS, LLAMA_2_7B)
    assert costs.tolist() == [0, 0, 0, 512, 512] * 2  # key and value, 128 wide, 2 bytes each


def test_memory_adds_the_weights_and_the_cached_tokens() -> None:
    ffn, kv = 3 * 4096 * 2, 4 * 128 * 4096 * 2
    assert memory_cost(UNITS, LLAMA_2_7B, 0).tolist() == [ffn, ffn, ffn, kv, kv] * 2
    expected = [ffn, ffn, ffn, kv + 1000 * 512, kv + 1000 * 512] * 2
    assert memory_cost(UNITS, LLAMA_2_7B, 1000).tolist() == expected


def test_biases_count() -> None:
    plain = Widths(10, 4, 2, False, False, 2, 2)
    biased = replace(plain, qkv_bias=True, mlp_bias=True)
    assert (plain.ffn_parameters, plain.kv_parameters) == (30, 6 * 4 * 10)
    assert (biased.ffn_parameters, biased.kv_parameters) == (32, 6 * 4 * 10 + 4 * 4)
