"""Cutting, with small examples by hand; `tests/checkpoint` compares cut models with gated ones."""

from __future__ import annotations

import torch

from grasp_deploy.pruning.slicing import cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import generator

# One layer: FFN channels 0-2 and KV groups 0-1 of one query head each, 2 wide.
UNITS = UnitTable.of_layers([(3, 2)])
MASK = torch.tensor([True, False, True, False, True])
SCALES = torch.tensor([2.0, 1.0, 0.5, 1.0, 3.0])
CUT = layer_cut(UNITS, 0, MASK, SCALES, group_size=1, head_dim=2)


def test_query_heads_go_with_their_group_and_later_layers_count_from_their_own_start() -> None:
    units = UnitTable.of_layers([(1, 1), (3, 2)])
    mask, scales = torch.cat([torch.ones(2).bool(), MASK]), torch.cat([torch.ones(2), SCALES])
    cut = layer_cut(units, 1, mask, scales, group_size=3, head_dim=2)
    assert cut.kept["channels"].tolist() == [0, 2]
    assert cut.scales["channels"].tolist() == [2, 0.5]
    assert cut.kept["queries"].tolist() == [6, 7, 8, 9, 10, 11]
    assert cut.scales["queries"].tolist() == [3] * 6
    assert cut.kept["keys-values"].tolist() == [2, 3]


def test_rows_leave_and_columns_leave_scaled() -> None:
    six = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    eight = torch.arange(8.0).view(2, 4)
    for name in ("gate_proj", "up_proj"):
        assert cut_tensor(f"mlp.{name}.weight", six, CUT).tolist() == [[1, 2], [5, 6]]
        assert cut_tensor(f"mlp.{name}.bias", six[:, 0], CUT).tolist() == [1, 5]
    assert cut_tensor("mlp.down_proj.weight", six.T, CUT).tolist() == [[2, 2.5], [4, 3]]
    for name in ("q_proj", "k_proj", "v_proj"):
        assert cut_tensor(f"self_attn.{name}.weight", eight.T, CUT).tolist() == [[2, 6], [3, 7]]
        assert cut_tensor(f"self_attn.{name}.bias", eight[0], CUT).tolist() == [2, 3]
    assert cut_tensor("self_attn.o_proj.weight", eight, CUT).tolist() == [[6, 9], [18, 21]]


def test_biases_of_outputs_and_norms_pass_through() -> None:
    tensor = torch.randn(5)
    attention = ("self_attn.o_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight")
    norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    for name in ("mlp.down_proj.bias", *attention, *norms):
        assert cut_tensor(name, tensor, CUT) is tensor


def test_folding_rounds_once_from_float32() -> None:
    weight = torch.randn(64, 3, generator=generator(0)).bfloat16()
    scales = torch.tensor([1.0036, 1.0, 0.7637, 1.0, 1.0])
    cut = layer_cut(UNITS, 0, MASK, scales, group_size=1, head_dim=2)
    folded = cut_tensor("mlp.down_proj.weight", weight, cut)
    assert folded.dtype == torch.bfloat16
    exact = weight.double()[:, [0, 2]] * scales.double()[[0, 2]]
    assert torch.equal(folded, exact.float().bfloat16())
    assert not torch.equal(folded, weight[:, [0, 2]] * scales[[0, 2]].bfloat16())
