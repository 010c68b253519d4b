"""Closed-form compensation: least squares against a solver of its own, and errors only fall."""

from __future__ import annotations

import copy

import pytest
import torch
from grasp_deploy.pruning.output_projections import OutputProjections
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.compensation import Fit, compensate
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import UNITS, frozen, generator, hooks_of, token_ids
from tests.tiny import VARIANTS, tiny_model


def random_mask(units: UnitTable, seed: int = 0) -> Tensor:
    mask = torch.rand(units.size, generator=generator(seed)) < 0.5
    for layer in range(units.layers):
        mask[units.ffn(layer).start] = mask[units.kv(layer).start] = True
    return mask


def fitted(name: str, blocks: Tensor, batch_size: int = 3) -> tuple[PreTrainedModel, list[Fit]]:
    model = frozen(name)
    units, width = units_of(model)
    mask = random_mask(units)
    fits = compensate(model, units, width, mask, blocks, batch_size=batch_size, ridge=0.01)
    return model, list(fits)


def units_of(model: PreTrainedModel) -> tuple[UnitTable, int]:
    config = model.config
    layers = [(config.intermediate_size, config.num_key_value_heads)] * config.num_hidden_layers
    head_dim = model.model.layers[0].self_attn.head_dim
    width = config.num_attention_heads // config.num_key_value_heads * head_dim
    return UnitTable.of_layers(layers), width


def hidden_states(model: nn.Module, blocks: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return list(model(input_ids=blocks, output_hidden_states=True).hidden_states)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_layers_error_falls_and_is_the_one_that_hidden_states_show(name: str) -> None:
    """Measured on the whole model's own hidden states, behind the second layer's MLP."""
    blocks = token_ids(10, 24, seed=4)
    model, fits = fitted(name, blocks)
    units, width = units_of(model)
    assert [(fit.layer, fit.linear) for fit in fits] == [
        (layer, linear)
        for layer in range(units.layers)
        for linear in ("self_attn.o_proj", "mlp.down_proj")
    ]
    assert all(fit.after <= fit.before for fit in fits)
    assert sum(fit.after for fit in fits) < 0.95 * sum(fit.before for fit in fits)

    dense = hidden_states(tiny_model(**VARIANTS[name]), blocks)
    with gated(model, units, width) as gates:
        gates.assign(random_mask(units).float())
        pruned = hidden_states(model, blocks)
    error = float((dense[1] - pruned[1]).double().square().sum())
    assert fits[1].after == pytest.approx(error, rel=1e-3)


def test_only_kept_columns_of_the_output_layers_change() -> None:
    blocks = token_ids(4, 24, seed=4)
    model, _ = fitted("llama-biases", blocks)
    units, width = units_of(model)
    before = tiny_model(**VARIANTS["llama-biases"]).state_dict()
    columns = OutputProjections(model, units, width).columns(random_mask(units))
    for name, after in model.state_dict().items():
        if name not in columns:
            assert torch.equal(after, before[name]), name
            continue
        kept = torch.zeros(after.shape[1], dtype=torch.bool)
        kept[columns[name]] = True
        assert torch.equal(after[:, ~kept], before[name][:, ~kept])
        assert not torch.equal(after[:, kept], before[name][:, kept])


def test_output_layers_go_back_and_forth() -> None:
    model = frozen()
    dense = copy.deepcopy(model.state_dict())
    outputs = OutputProjections(model, UNITS, 64)
    mask = random_mask(UNITS)
    list(compensate(model, UNITS, 64, mask, token_ids(4, 24), batch_size=2, ridge=0.01))
    solved, kept = copy.deepcopy(model.state_dict()), outputs.extract(mask)
    outputs.reset()
    assert all(torch.equal(tensor, dense[name]) for name, tensor in model.state_dict().items())
    outputs.load(mask, kept)
    assert all(torch.equal(tensor, solved[name]) for name, tensor in model.state_dict().items())


def test_a_mask_that_keeps_everything_changes_next_to_nothing() -> None:
    blocks = token_ids(4, 24, seed=4)
    model = frozen()
    dense = copy.deepcopy(model)
    everything = torch.ones(UNITS.size, dtype=torch.bool)
    fits = list(compensate(model, UNITS, 64, everything, blocks, batch_size=2, ridge=0.01))
    assert all(fit.after <= 1e-6 * fit.target_energy for fit in fits)
    with torch.no_grad():
        difference = (model(input_ids=blocks).logits - dense(input_ids=blocks).logits).abs().max()
    assert difference < 1e-3


def test_batches_change_nothing() -> None:
    blocks = token_ids(7, 24, seed=4)
    one, _ = fitted("qwen2-sliding", blocks, batch_size=1)
    many, _ = fitted("qwen2-sliding", blocks, batch_size=5)  # and a rest of 2
    for left, right in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)


def test_no_hook_and_no_gradient_stays() -> None:
    model, _ = fitted("llama", token_ids(4, 24, seed=4))
    assert hooks_of(model) == 0
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
