"""Gates: the right values at the right places, the right gradients, and nothing left behind."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.gates import Gates, gated, straight_through
from grasp_deploy.pruning.objective import language_loss, mean_loss
from grasp_deploy.pruning.training import freeze
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import UNITS, frozen, generator, hooks_of, token_ids
from tests.tiny import logits_of, tiny_model

IDS = token_ids(2, 16)


def random_values(dtype: torch.dtype = torch.float32) -> Tensor:
    return 0.5 + torch.rand(UNITS.size, generator=generator(0)).to(dtype)


logits = partial(logits_of, ids=IDS)


def test_gates_are_open_until_assigned_and_no_hook_is_left_behind() -> None:
    model = tiny_model("llama")
    expected = logits(model)
    with pytest.raises(KeyboardInterrupt), gated(model, UNITS) as gates:
        assert torch.equal(logits(model), expected)
        gates.assign(torch.zeros(UNITS.size))
        assert hooks_of(model) == 2 * UNITS.layers
        raise KeyboardInterrupt
    assert hooks_of(model) == 0
    assert torch.equal(logits(model), expected)


def gate_gradient(model: PreTrainedModel, values: Tensor) -> Tensor:
    values = values.clone().requires_grad_()
    with gated(model, UNITS) as gates:
        gates.assign(values)
        language_loss(model, IDS).backward()
    assert values.grad is not None
    assert all(weight.grad is None for weight in model.parameters() if not weight.requires_grad)
    return values.grad


def float64_model(family: str) -> PreTrainedModel:
    """A tiny model whose norms do not compute in float32, as those of transformers do."""
    model = tiny_model(family, dtype=torch.float64)
    for name, module in list(model.named_modules()):
        if name.endswith("norm"):
            exact = nn.RMSNorm(len(module.weight), module.variance_epsilon, dtype=torch.float64)
            exact.weight = module.weight
            model.set_submodule(name, exact)
    freeze(model)
    return model


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_gradient_is_that_of_finite_differences(family: str) -> None:
    model, values = float64_model(family), random_values(torch.float64)
    gradient = gate_gradient(model, values)
    step = 1e-5
    groups = UNITS.is_kv.nonzero().flatten().tolist()
    for unit in [0, 17, 95, 98, 193, 196, 291, *groups]:
        losses = []
        for sign in (1, -1):
            moved = values.clone()
            moved[unit] += sign * step
            with gated(model, UNITS) as gates:
                gates.assign(moved)
                rows = logits(model)[:, :-1].flatten(0, 1)
                losses.append(float(nn.functional.cross_entropy(rows, IDS[:, 1:].flatten())))
        slope = (losses[0] - losses[1]) / (2 * step)
        assert float(gradient[unit]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_half_precision_gradients_are_summed_over_tokens_in_float32() -> None:
    gates = Gates(UnitTable.of_layers([(1, 1)]), widths={0: 1, 1: 1})
    values = torch.ones(2, requires_grad=True)
    gates.assign(values)
    gates.multiply(0, torch.ones(1, 4095, 1, dtype=torch.bfloat16)).float().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [4095, 0]  # bfloat16 knows 4080 and 4096


def test_straight_through_shows_the_mask_and_hands_the_gradient_on() -> None:
    p = torch.tensor([0.3, 0.9, 0.6], requires_grad=True)
    gates = straight_through(p, torch.tensor([True, False, True]))
    assert gates.tolist() == [1, 0, 1]
    (gates * torch.tensor([2.0, 3.0, 5.0])).sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == [2, 3, 5]


def test_gradient_checkpointing_computes_layers_twice_and_gives_the_same_gradients() -> None:
    plain = frozen()
    # Were dropout on, the gradients would differ.
    model = tiny_model("llama", attention_dropout=0.5)
    freeze(model, gradient_checkpointing=True)
    calls = []
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    values = random_values()
    assert torch.equal(gate_gradient(model, values), gate_gradient(plain, values))
    assert len(calls) == 2 * UNITS.layers
    calls.clear()
    assert mean_loss(model, IDS, 2) == mean_loss(plain, IDS, 2)
    assert len(calls) == UNITS.layers
