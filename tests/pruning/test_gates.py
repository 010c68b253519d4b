"""Gates: the right values at the right places, the right gradients, and nothing left behind."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.gates import Gates, GateSite, gated, straight_through
from grasp_deploy.pruning.hooks import on_inputs
from grasp_deploy.pruning.objective import language_loss, mean_loss
from grasp_deploy.pruning.training import freeze
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import GROUP_WIDTH, UNITS, frozen, generator, hooks_of, token_ids
from tests.tiny import tiny_model

IDS = token_ids(2, 16)


def random_values(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return 0.5 + torch.rand(UNITS.size, generator=generator(seed)).to(dtype)


def inputs_of(model: PreTrainedModel, values: Tensor | None) -> dict[str, Tensor]:
    """The inputs of each gated linear layer, by its name."""
    seen: dict[str, Tensor] = {}
    layers = [(layer.mlp.down_proj, layer.self_attn.o_proj) for layer in model.model.layers]
    names = [f"{layer}.{kind}" for layer in range(UNITS.layers) for kind in ("ffn", "kv")]
    with gated(model, UNITS, GROUP_WIDTH) as gates, torch.no_grad():
        if values is not None:
            gates.assign(values)
        with on_inputs(chain(*layers), lambda index, x: seen.update({names[index]: x})):
            model(input_ids=IDS)
    return seen


def test_a_gate_multiplies_its_channel_or_all_outputs_of_its_group_and_nothing_else() -> None:
    model = tiny_model("llama")
    plain = inputs_of(model, None)
    for unit, place, columns in (
        (UNITS.ffn(0).start + 5, "0.ffn", slice(5, 6)),
        (UNITS.kv(0).start + 1, "0.kv", slice(64, 128)),
    ):
        values = torch.ones(UNITS.size)
        values[unit] = 0.25
        got = inputs_of(model, values)[place]
        expected = plain[place].clone()
        expected[..., columns] *= 0.25
        assert torch.equal(got, expected)


def test_every_unit_reaches_its_own_layer() -> None:
    model = tiny_model("llama")
    for layer in range(UNITS.layers):
        for kind, units in (("ffn", UNITS.ffn(layer)), ("kv", UNITS.kv(layer))):
            values = torch.ones(UNITS.size)
            values[units] = 0
            zeroed = [name for name, x in inputs_of(model, values).items() if not x.any()]
            assert zeroed == [f"{layer}.{kind}"]


def test_gates_are_open_until_values_are_assigned() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with gated(model, UNITS, GROUP_WIDTH):
            assert torch.equal(model(input_ids=IDS).logits, expected)


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize(("site", "per_layer"), [("outputs", 2), ("keys-values", 3)])
def test_no_hook_is_left_behind(site: GateSite, per_layer: int, fail: bool) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
    try:
        with gated(model, UNITS, GROUP_WIDTH, site) as gates:
            gates.assign(torch.zeros(UNITS.size))
            assert hooks_of(model) == per_layer * UNITS.layers
            if fail:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert hooks_of(model) == 0
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, expected)


def test_no_hook_is_left_behind_when_the_model_is_of_another_family() -> None:
    model = tiny_model("llama")
    del model.model.layers[2].self_attn
    with pytest.raises(AttributeError), gated(model, UNITS, GROUP_WIDTH):
        pass
    assert hooks_of(model) == 0


def gate_gradient(model: PreTrainedModel, values: Tensor, site: GateSite = "outputs") -> Tensor:
    values = values.clone().requires_grad_()
    with gated(model, UNITS, GROUP_WIDTH, site) as gates:
        gates.assign(values)
        language_loss(model, IDS).backward()
    assert values.grad is not None
    return values.grad


def float64_model(family: str) -> PreTrainedModel:
    """A tiny model whose norms do not compute in float32, as those of transformers do."""
    model = tiny_model(family, dtype=torch.float64)
    for name, module in list(model.named_modules()):
        if name.endswith("norm"):
            exact = nn.RMSNorm(len(module.weight), module.variance_epsilon, dtype=torch.float64)
            exact.weight = module.weight
            model.set_submodule(name, exact)
    return model


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_gradient_is_that_of_finite_differences(family: str) -> None:
    model = float64_model(family)
    freeze(model)
    values = random_values(torch.float64)
    gradient = gate_gradient(model, values)
    step = 1e-5
    groups = UNITS.is_kv.nonzero().flatten().tolist()
    for unit in [0, 17, 95, 98, 150, 193, 196, 240, 291, *groups]:
        losses = []
        for sign in (1, -1):
            moved = values.clone()
            moved[unit] += sign * step
            with gated(model, UNITS, GROUP_WIDTH) as gates, torch.no_grad():
                gates.assign(moved)
                losses.append(float64_loss(model))
        slope = (losses[0] - losses[1]) / (2 * step)
        assert float(gradient[unit]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def float64_loss(model: PreTrainedModel) -> float:
    logits = model(input_ids=IDS).logits[:, :-1]
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten()))


def random_mask() -> Tensor:
    """A `(N,)` mask that opens one KV group of the second layer, and none of the last."""
    mask = torch.rand(UNITS.size, generator=generator(0)) < 0.5
    mask[UNITS.kv(1)] = torch.tensor([False, True])
    mask[UNITS.kv(2)] = False
    return mask


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_masks_mean_the_same_at_either_site(family: str) -> None:
    """Also where keys have a bias, and where a norm stands behind them."""
    model = tiny_model(family)
    logits = []
    for site in ("outputs", "keys-values"):
        with gated(model, UNITS, GROUP_WIDTH, site) as gates, torch.no_grad():
            gates.assign(random_mask().float())
            logits.append(model(input_ids=IDS).logits)
    assert bool(logits[1].isfinite().all())
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)


def gradient_of_gated_weights(model: PreTrainedModel, values: Tensor) -> Tensor:
    """The gate's gradient, of keys and values: the gates are multiplied into weights and biases."""
    values = values.clone().requires_grad_()
    weights = dict(model.named_parameters())
    for layer in range(UNITS.layers):
        stem = f"model.layers.{layer}"
        weights[f"{stem}.mlp.down_proj.weight"] = (
            weights[f"{stem}.mlp.down_proj.weight"] * values[UNITS.ffn(layer)]
        )
        rows = values[UNITS.kv(layer)].repeat_interleave(32)
        for name in [f"{stem}.self_attn.{kind}_proj" for kind in "kv"]:
            weights[f"{name}.weight"] = weights[f"{name}.weight"] * rows[:, None]
            if f"{name}.bias" in weights:
                weights[f"{name}.bias"] = weights[f"{name}.bias"] * rows
    logits = torch.func.functional_call(model, weights, kwargs={"input_ids": IDS}).logits[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten())
    (gradient,) = torch.autograd.grad(loss, values)
    return gradient


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_gradient_at_keys_and_values_is_autograds_and_another_than_at_outputs(
    family: str,
) -> None:
    model = frozen(family)
    for values in (random_values(), random_mask().float(), torch.ones(UNITS.size)):
        found = gate_gradient(model, values, "keys-values")
        expected = gradient_of_gated_weights(model, values)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    mask = random_mask().float()
    sites = [gate_gradient(model, mask, site) for site in ("outputs", "keys-values")]
    removed = UNITS.is_kv & (mask == 0)
    differences = (sites[0] - sites[1]).abs()
    assert bool((differences[removed] > 1e-3).all())
    assert float(differences[~UNITS.is_kv].max()) < 1e-5


def test_gating_passes_gradcheck() -> None:
    units = UnitTable.of_layers([(3, 2)])
    gates = Gates(units, group_width=2)

    def gate(x: Tensor, y: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        gates.assign(values)
        return gates.multiply(0, x), gates.multiply(1, y)

    generator = torch.Generator().manual_seed(0)
    x, y, values = (
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((2, 4, 3), (2, 4, 4), (5,))
    )
    assert torch.autograd.gradcheck(gate, (x, y, values))
    assert torch.autograd.gradcheck(gate, (x.detach(), y.detach(), values))
    assert torch.autograd.gradcheck(gate, (x, y, values.detach()))


def test_half_precision_gradients_are_summed_over_tokens_in_float32() -> None:
    gates = Gates(UnitTable.of_layers([(1, 1)]), group_width=1)
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


def test_no_weight_gets_a_gradient() -> None:
    model = frozen()
    gate_gradient(model, random_values())
    assert all(weight.grad is None for weight in model.parameters())
    assert not model.training


@pytest.mark.parametrize("site", ["outputs", "keys-values"])
def test_gradient_checkpointing_computes_layers_twice_and_gives_the_same_gradients(
    site: GateSite,
) -> None:
    plain = frozen()
    # Were dropout on, the gradients would differ.
    model = tiny_model("llama", attention_dropout=0.5)
    freeze(model, gradient_checkpointing=True)
    calls = []
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    values = random_values()
    assert torch.equal(gate_gradient(model, values, site), gate_gradient(plain, values, site))
    assert len(calls) == 2 * UNITS.layers
    calls.clear()
    assert mean_loss(model, IDS, 2) == mean_loss(plain, IDS, 2)
    assert len(calls) == UNITS.layers
