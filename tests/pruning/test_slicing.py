"""Cutting against gating, with the families' own modules, and small examples by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.slicing import LayerCut, cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable
from tests.tiny import VARIANTS, tiny_model

TOKENS = 12


@pytest.mark.parametrize("name", VARIANTS)
def test_cut_modules_compute_what_gated_modules_do(name: str) -> None:
    model = tiny_model(**VARIANTS[name])
    shape = model_shape(model.config.to_dict())
    units, group = unit_table(shape), shape.query_heads_per_group
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(units.size, generator=generator) < 0.5
    for layer in range(units.layers):  # of the groups, the last one: a cut that moves rows
        mask[units.kv(layer)] = torch.arange(shape.layers[layer].num_key_value_heads) % 2 == 1
    scales = 0.5 + torch.rand(units.size, generator=generator)
    x = torch.randn(2, TOKENS, shape.hidden_size, generator=generator)
    with gated(model, units, group * shape.head_dim) as gates, torch.no_grad():
        gates.assign(mask * scales)
        for index, layer in enumerate(model.model.layers):
            cut = layer_cut(units, index, mask, scales, group, shape.head_dim)
            mlp, attention = cut_modules(model, index, cut)
            torch.testing.assert_close(mlp(x), layer.mlp(x))
            torch.testing.assert_close(
                attend(model, attention, x), attend(model, layer.self_attn, x)
            )


def cut_modules(model: PreTrainedModel, index: int, cut: LayerCut) -> tuple[nn.Module, nn.Module]:
    """The stock MLP and attention of a layer, built smaller and filled with cut tensors."""
    dense = model.model.layers[index]
    config = copy.deepcopy(model.config)
    config.head_dim = dense.self_attn.head_dim
    config.intermediate_size = len(cut.kept["channels"])
    config.num_attention_heads = len(cut.kept["queries"]) // config.head_dim
    config.num_key_value_heads = len(cut.kept["keys-values"]) // config.head_dim
    modules = type(dense.mlp)(config), type(dense.self_attn)(config, index)
    for module, part in zip(modules, ("mlp", "self_attn"), strict=True):
        tensors = getattr(dense, part).state_dict()
        module.load_state_dict({k: cut_tensor(f"{part}.{k}", t, cut) for k, t in tensors.items()})
        module.eval()
    return modules


def attend(model: PreTrainedModel, attention: nn.Module, x: Tensor) -> Tensor:
    rotary = model.model.rotary_emb(x, torch.arange(TOKENS)[None])
    return attention(hidden_states=x, position_embeddings=rotary, attention_mask=None)[0]


# One layer: FFN channels 0-2 and KV groups 0-1 of one query head each, 2 wide.
UNITS = UnitTable.of_layers([(3, 2)])
MASK = torch.tensor([True, False, True, False, True])
SCALES = torch.tensor([2.0, 1.0, 0.5, 1.0, 3.0])


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
    cut = layer_cut(UNITS, 0, MASK, SCALES, group_size=1, head_dim=2)
    six = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    eight = torch.arange(8.0).view(2, 4)
    for name in ("gate_proj", "up_proj"):
        assert cut_tensor(f"mlp.{name}.weight", six, cut).tolist() == [[1, 2], [5, 6]]
        assert cut_tensor(f"mlp.{name}.bias", six[:, 0], cut).tolist() == [1, 5]
    assert cut_tensor("mlp.down_proj.weight", six.T, cut).tolist() == [[2, 2.5], [4, 3]]
    for name in ("q_proj", "k_proj", "v_proj"):
        assert cut_tensor(f"self_attn.{name}.weight", eight.T, cut).tolist() == [[2, 6], [3, 7]]
        assert cut_tensor(f"self_attn.{name}.bias", eight[0], cut).tolist() == [2, 3]
    assert cut_tensor("self_attn.o_proj.weight", eight, cut).tolist() == [[6, 9], [18, 21]]


def test_biases_of_outputs_and_norms_pass_through() -> None:
    tensor = torch.randn(5)
    cut = layer_cut(UNITS, 0, MASK, SCALES, group_size=1, head_dim=2)
    attention = ("self_attn.o_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight")
    norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    for name in ("mlp.down_proj.bias", *attention, *norms):
        assert cut_tensor(name, tensor, cut) is tensor


def test_folding_rounds_once_from_float32() -> None:
    weight = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    scales = torch.tensor([1.0036, 1.0, 0.7637, 1.0, 1.0])
    cut = layer_cut(UNITS, 0, MASK, scales, group_size=1, head_dim=2)
    folded = cut_tensor("mlp.down_proj.weight", weight, cut)
    assert folded.dtype == torch.bfloat16
    exact = weight.double()[:, [0, 2]] * scales.double()[[0, 2]]
    assert torch.equal(folded, exact.float().bfloat16())
    assert not torch.equal(folded, weight[:, [0, 2]] * scales[[0, 2]].bfloat16())
