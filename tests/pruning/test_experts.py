"""Experts as units: what a gated router chooses, and the loss of removing one."""

from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.gates import gated, straight_through
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, learn_scales, text_loss
from tests.pruning.tiny_units import EXPERTS as UNITS
from tests.pruning.tiny_units import frozen

IDS = torch.randint(1, 256, (2, 16), generator=torch.Generator().manual_seed(5))
VARIANT = pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-renormed"])


def mask_without(*units: int) -> Tensor:
    return torch.ones(UNITS.size).index_fill(0, torch.tensor(units, dtype=torch.int64), 0.0)


@VARIANT
def test_gates_of_kept_experts_have_the_gradient_of_finite_differences(name: str) -> None:
    model, mask = frozen(name).double(), mask_without(0, 3, 12).double()
    model.config._experts_implementation = "eager"  # others know no float64
    values, embedded = mask.clone().requires_grad_(), model.get_input_embeddings()(IDS)
    with gated(model, UNITS) as gates:
        gates.assign(values)
        language_loss_of(model, embedded).backward()
        assert values.grad is not None
        for unit in (1, 5, 11, 22):
            moved = torch.zeros_like(mask).index_fill(0, torch.tensor([unit]), 1e-3)
            with torch.no_grad():
                losses = []
                for step in (moved, -moved):
                    gates.assign(mask + step)
                    losses.append(float(language_loss_of(model, embedded)))
            expected = (losses[0] - losses[1]) / 2e-3
            assert float(values.grad[unit]) == pytest.approx(expected, rel=5e-3, abs=1e-5)


@VARIANT
def test_removed_experts_learn_from_tokens_that_would_take_them(name: str) -> None:
    """Their gates change nothing in the forward pass, and have gradients; so do the others'."""
    model, mask = frozen(name), mask_without(0, 3, 12)
    p = torch.full((UNITS.size,), 0.5, requires_grad=True)
    with gated(model, UNITS) as gates, torch.no_grad():
        gates.assign(mask)
        expected = model(IDS).logits
    with gated(model, UNITS) as gates:
        gates.assign(straight_through(p, mask))
        output = model(IDS).logits
        output.square().sum().backward()
    assert (output - expected).abs().max() <= 1e-4
    assert p.grad is not None and bool((p.grad[[0, 3, 12]] != 0).all())


@VARIANT
def test_no_token_takes_a_removed_expert_while_scales_learn(name: str) -> None:
    model, taken = frozen(name), list[int]()
    schedule = Schedule(CalibrationBlocks(IDS, IDS[:0]), 1, len(IDS), 0.1, seed=0)
    state, loss = LearningState(torch.ones(UNITS.size), 0.1), text_loss(model, schedule)
    for layer in model.model.layers:
        layer.mlp.experts.register_forward_pre_hook(lambda _, x: taken.append(x[1].shape[1]))
    mask = mask_without(0, 3, 12) > 0
    deque(learn_scales(model, UNITS, mask, schedule, state, loss), maxlen=0)
    assert taken == [2, 2, 2]


@VARIANT
@pytest.mark.parametrize("removed", [(), (0, 3, 4, 5, 6)])
def test_an_experts_loss_is_that_of_a_layer_without_it(name: str, removed: tuple[int, ...]) -> None:
    model, mask = frozen(name), mask_without(*removed)
    mlp, seen = model.model.layers[0].mlp, {}

    def watch(_: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        seen["x"] = inputs[0].detach()
        output.register_hook(lambda gradient: seen.update(gradient=gradient))

    with gated(model, UNITS) as gates:
        gates.assign(mask)
        scores = obs_scores(model, UNITS, CalibrationText(IDS, 2))
        hook = mlp.register_forward_hook(watch)
        embedded = model.get_input_embeddings()(IDS).requires_grad_()
        loss = language_loss_of(model, embedded)
        (loss * IDS[:, 1:].numel()).backward()
        hook.remove()
        for expert in sorted({*range(8)} - {*removed}):
            with torch.no_grad():
                gates.assign(mask)
                whole = mlp(seen["x"])
                gates.assign(mask * mask_without(expert))
                change = ((mlp(seen["x"]) - whole) * seen["gradient"]).sum(-1)
            expected = float(change.double().square().sum() / 2 / IDS.numel())
            assert float(scores[expert]) == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert not scores[list(removed)].any()


def language_loss_of(model: Any, embedded: Tensor) -> Tensor:
    logits = model(inputs_embeds=embedded).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, IDS[:, 1:].flatten())
