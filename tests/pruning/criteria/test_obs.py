"""The surgeon's loss against what it stands for: least squares, and gradients written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.elimination import losses_one_by_one
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.layout import output_projections
from grasp_deploy.pruning.training import freeze
from tests.pruning.tiny_units import GROUP_WIDTH, UNITS, frozen, token_ids

SEQUENCES = token_ids(3, 20, seed=1)
TEXT = CalibrationText(SEQUENCES, 2)


def as_it_is() -> Tensor:
    return torch.ones(UNITS.size)


def partly_removed() -> Tensor:
    mask = torch.ones(UNITS.size)
    mask[UNITS.ffn(1)][::2] = 0
    mask[UNITS.kv(2)][:1] = 0
    return mask


@pytest.mark.parametrize("mask", [as_it_is(), partly_removed()], ids=["open", "gated"])
@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen3", "mistral-sliding"])
def test_the_scores_are_the_losses_of_both_factors(name: str, mask: Tensor) -> None:
    """All inputs behind the gates at once, and gradients by autograd."""
    model = frozen(name)
    with gated(model, UNITS, GROUP_WIDTH) as gates:
        gates.assign(mask)
        found = obs_scores(model, UNITS, TEXT)
        ys, gs = seen_inputs_and_gradients(model, SEQUENCES)
    expected = []
    for y, g, size in zip(ys, gs, UNITS.segment_sizes, strict=True):
        width = y.shape[1] // size
        moments = torch.stack([part.T @ part / len(g) for part in g.split(width, dim=1)])
        expected.append(losses_one_by_one(y.T @ y / len(y), moments))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-3, atol=1e-12)


def test_layers_whose_units_all_stay_are_left_out() -> None:
    model = frozen("llama")
    is_kv = UNITS.is_kv
    every = obs_scores(model, UNITS, TEXT)
    found = obs_scores(model, UNITS, TEXT, removable=is_kv)
    assert torch.equal(found[is_kv], every[is_kv]) and every[~is_kv].any()
    assert not found[~is_kv].any()


def test_checkpointed_activations_give_the_same_scores() -> None:
    model = frozen("llama")
    plain = obs_scores(model, UNITS, TEXT)
    freeze(model, gradient_checkpointing=True)
    torch.testing.assert_close(obs_scores(model, UNITS, TEXT), plain)


def test_how_a_channel_is_scaled_makes_no_difference() -> None:
    """As real models have it: one input thousands of times as large as the others of its layer."""
    model = frozen("llama")
    before = obs_scores(model, UNITS, TEXT)
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        mlp.up_proj.weight[7] *= 1000
        mlp.down_proj.weight[:, 7] /= 1000
    torch.testing.assert_close(obs_scores(model, UNITS, TEXT), before, rtol=0.1, atol=1e-12)


def test_a_channel_that_is_always_zero_is_worth_nothing() -> None:
    model = frozen("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[7] = 0
    scores = obs_scores(model, UNITS, TEXT)
    assert scores.argmin() == UNITS.ffn(1).start + 7
    assert scores.min() < 1e-6 * scores.median()


def seen_inputs_and_gradients(
    model: torch.nn.Module, blocks: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """`(tokens, width)` float64 inputs of each gated layer, and gradients of the summed loss."""
    inputs: list[Tensor] = []

    def keep(_module: torch.nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        x = arguments[0] if arguments[0].requires_grad else arguments[0].requires_grad_()
        x.retain_grad()
        inputs.append(x)
        return (x,)

    handles = [
        linear.register_forward_pre_hook(keep)
        for linear in list(output_projections(model).values())
    ]
    logits = model(input_ids=blocks).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), blocks[:, 1:].flatten(), reduction="sum"
    )
    loss.backward()
    for handle in handles:
        handle.remove()
    # Attention comes first in a layer, and segments name the MLP first.
    by_segment = [inputs[place ^ 1] for place in range(len(inputs))]
    gradients = [x.grad for x in by_segment if x.grad is not None]
    return [rows(x.detach()) for x in by_segment], [rows(x) for x in gradients]


def rows(x: Tensor) -> Tensor:
    return x.flatten(0, 1).double()
