"""Closed-form compensation: least squares against a solver of its own, and errors only fall."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.compensation import Fit, OutputProjections, compensate
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.layout import on_outputs
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import frozen, generator, hooks_of, token_ids
from tests.tiny import VARIANTS

IDS = token_ids(7, 24, seed=4)


def random_mask(units: UnitTable) -> Tensor:
    mask = torch.rand(units.size, generator=generator(0)) < 0.5
    for layer in range(units.layers):
        mask[units.ffn(layer).start] = mask[units.kv(layer).start] = True
    return mask


def fitted(name: str, batch_size: int = 3) -> tuple[PreTrainedModel, UnitTable, list[Fit]]:
    model = frozen(name)
    units = unit_table(model_shape(model.config.to_dict()))
    fits = compensate(model, units, random_mask(units), IDS, batch_size=batch_size, ridge=0.01)
    return model, units, list(fits)


@torch.no_grad()
def first_hidden_states(model: nn.Module) -> Tensor:
    return model(input_ids=IDS, output_hidden_states=True).hidden_states[1]


@torch.no_grad()
def first_output(model: Any) -> Tensor:
    """What the first layer's MLP returns, before a norm behind it."""
    outputs: list[Tensor] = []
    with on_outputs({0: model.model.layers[0].mlp}, lambda _, y: outputs.append(y)):
        model(input_ids=IDS)
    return outputs[0]


@pytest.mark.parametrize(
    "name",
    [
        *("llama-mha", "llama-biases", "qwen2-sliding", "qwen3", "granite-biases", "ministral3"),
        *("gemma3-sliding", "gemma3-sliding-biases"),
    ],
)
def test_every_layers_error_falls_and_is_the_one_that_hidden_states_show(name: str) -> None:
    """Measured on the whole model behind the first layer's MLP: of Gemma before its norm there."""
    measured = first_output if "gemma" in name else first_hidden_states
    model, units, fits = fitted(name)
    assert [(fit.layer, fit.linear) for fit in fits] == [
        (layer, linear)
        for layer in range(units.layers)
        for linear in ("self_attn.o_proj", "mlp.down_proj")
    ]
    assert sum(fit.after for fit in fits) < 0.95 * sum(fit.before for fit in fits)
    assert hooks_of(model) == 0
    with gated(model, units) as gates:
        gates.assign(random_mask(units).float())
        pruned = measured(model)
    error = float((measured(frozen(name)) - pruned).double().square().sum())
    factor = VARIANTS[name].get("residual_multiplier", 1.0)
    assert fits[1].after == pytest.approx(error / factor**2, rel=1e-3)


def test_only_kept_columns_of_the_output_layers_change_and_come_and_go() -> None:
    model, units, _ = fitted("llama-biases")
    dense_model, mask = frozen("llama-biases"), random_mask(units)
    before, solved = dense_model.state_dict(), copy.deepcopy(model.state_dict())
    outputs = OutputProjections(dense_model, units)
    columns = outputs.columns(mask)
    for name, after in solved.items():
        if name not in columns:
            assert torch.equal(after, before[name]), name
            continue
        kept = torch.zeros(after.shape[1], dtype=torch.bool)
        kept[columns[name]] = True
        assert torch.equal(after[:, ~kept], before[name][:, ~kept])
        assert not torch.equal(after[:, kept], before[name][:, kept])
    dense = copy.deepcopy(before)
    outputs.load(mask, OutputProjections(model, units).extract(mask))
    assert all(torch.equal(tensor, solved[name]) for name, tensor in before.items())
    outputs.reset()
    assert all(torch.equal(tensor, dense[name]) for name, tensor in before.items())


def test_batches_change_nothing() -> None:
    one, many = fitted("qwen2-sliding", batch_size=1)[0], fitted("qwen2-sliding", batch_size=5)[0]
    for left, right in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
