"""Closed-form compensation: least squares against a solver of its own, and errors only fall."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.compensation import Fit, compensate
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.least_squares import NormalEquations
from grasp_deploy.pruning.output_projections import OutputProjections
from grasp_deploy.pruning.training import freeze
from grasp_deploy.pruning.units import UnitTable
from tests.tiny import VARIANTS, tiny_model

UNITS = UnitTable.of_layers([(96, 2)] * 3)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_mask(units: UnitTable, seed: int = 0) -> Tensor:
    mask = torch.rand(units.size, generator=generator(seed)) < 0.5
    for layer in range(units.layers):
        mask[units.ffn(layer).start] = mask[units.kv(layer).start] = True
    return mask


def normal_equations(targets: Tensor, inputs: Tensor) -> NormalEquations:
    sums = NormalEquations(targets.shape[-1], inputs.shape[-1])
    for t, y in zip(targets.split(7), inputs.split(7), strict=True):
        sums.add(t, y)
    return sums


def test_without_a_ridge_it_is_ordinary_least_squares() -> None:
    inputs = torch.randn(50, 6, generator=generator(0))
    targets = torch.randn(50, 3, generator=generator(1))
    solved = normal_equations(targets, inputs).solve(torch.zeros(3, 6), ridge=1e-12)
    expected = torch.linalg.lstsq(inputs.double(), targets.double()).solution.T
    torch.testing.assert_close(solved, expected, rtol=1e-4, atol=1e-5)


def test_the_ridge_pulls_towards_the_weights_as_they_are() -> None:
    """The augmented problem [y; Λ^½] W'ᵀ = [t; Λ^½ W_Kᵀ], solved as it stands."""
    inputs = torch.randn(50, 6, generator=generator(0))
    targets = torch.randn(50, 3, generator=generator(1))
    weight = torch.randn(3, 6, generator=generator(2))
    power = inputs.double().square().sum(0)
    root = (0.3 * power.clamp(min=power.median())).sqrt()
    rows = torch.cat([inputs.double(), root.diag()])
    wanted = torch.cat([targets.double(), root[:, None] * weight.double().T])
    expected = torch.linalg.lstsq(rows, wanted).solution.T
    solved = normal_equations(targets, inputs).solve(weight, ridge=0.3)
    torch.testing.assert_close(solved, expected, rtol=1e-4, atol=1e-5)


def test_the_error_is_the_sum_of_squares() -> None:
    inputs = torch.randn(50, 6, generator=generator(0))
    targets = torch.randn(50, 3, generator=generator(1))
    weight = torch.randn(3, 6, generator=generator(2))
    expected = float((targets - inputs @ weight.T).double().square().sum())
    assert normal_equations(targets, inputs).error(weight) == pytest.approx(expected, rel=1e-5)


def test_inputs_that_are_always_zero_leave_the_weights_alone() -> None:
    weight = torch.randn(3, 6, generator=generator(2))
    solved = normal_equations(torch.randn(50, 3), torch.zeros(50, 6)).solve(weight, ridge=0.01)
    assert torch.equal(solved, weight.double())


def fitted(name: str, blocks: Tensor, batch_size: int = 3) -> tuple[PreTrainedModel, list[Fit]]:
    model = tiny_model(**VARIANTS[name])
    freeze(model)
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
    blocks = torch.randint(256, (10, 24), generator=generator(4))
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
    found = float((dense[1] - pruned[1]).double().square().sum())
    assert fits[1].after == pytest.approx(found, rel=1e-3)


def test_only_kept_columns_of_the_output_layers_change() -> None:
    blocks = torch.randint(256, (4, 24), generator=generator(4))
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
    model = tiny_model("llama")
    freeze(model)
    dense = copy.deepcopy(model.state_dict())
    outputs = OutputProjections(model, UNITS, 64)
    mask = random_mask(UNITS)
    list(compensate(model, UNITS, 64, mask, torch.randint(256, (4, 24)), batch_size=2, ridge=0.01))
    solved, kept = copy.deepcopy(model.state_dict()), outputs.extract(mask)
    outputs.reset()
    assert all(torch.equal(tensor, dense[name]) for name, tensor in model.state_dict().items())
    outputs.load(mask, kept)
    assert all(torch.equal(tensor, solved[name]) for name, tensor in model.state_dict().items())


def test_a_mask_that_keeps_everything_changes_next_to_nothing() -> None:
    blocks = torch.randint(256, (4, 24), generator=generator(4))
    model = tiny_model("llama")
    freeze(model)
    dense = copy.deepcopy(model)
    everything = torch.ones(UNITS.size, dtype=torch.bool)
    fits = list(compensate(model, UNITS, 64, everything, blocks, batch_size=2, ridge=0.01))
    assert all(fit.after <= 1e-6 * fit.target_energy for fit in fits)
    with torch.no_grad():
        difference = (model(input_ids=blocks).logits - dense(input_ids=blocks).logits).abs().max()
    assert difference < 1e-3


def test_batches_change_nothing() -> None:
    blocks = torch.randint(256, (7, 24), generator=generator(4))
    one, _ = fitted("qwen2-sliding", blocks, batch_size=1)
    many, _ = fitted("qwen2-sliding", blocks, batch_size=5)  # and a rest of 2
    for left, right in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)


def test_no_hook_and_no_gradient_stays() -> None:
    model, _ = fitted("llama", torch.randint(256, (4, 24), generator=generator(4)))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())


def test_one_huge_input_does_not_hold_the_others_still() -> None:
    """The same layer with one input a thousand times as large, and its weights as much smaller."""
    inputs = torch.randn(50, 6, generator=generator(0))
    targets = torch.randn(50, 3, generator=generator(1))
    weight = torch.randn(3, 6, generator=generator(2)).double()
    solved = normal_equations(targets, inputs).solve(weight, ridge=0.01)
    scale = torch.tensor([1, 1000.0, 1, 1, 1, 1])
    scaled = normal_equations(targets, inputs * scale).solve(weight / scale, ridge=0.01)
    change = (scaled * scale - solved).norm() / (solved - weight).norm()
    assert change < 0.02


def test_an_input_that_the_text_hardly_excites_keeps_its_weights() -> None:
    inputs = torch.randn(50, 6, generator=generator(0))
    inputs[:, 2] *= 1e-4
    targets = torch.randn(50, 3, generator=generator(1))
    weight = torch.randn(3, 6, generator=generator(2)).double()
    moved = (normal_equations(targets, inputs).solve(weight, ridge=0.01) - weight).norm(dim=0)
    assert moved[2] < 0.05 * moved[[0, 1, 3, 4, 5]].min()
