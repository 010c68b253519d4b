"""The surgeon's loss against what it stands for: least squares, and gradients written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.criteria.elimination import losses_one_by_one
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.hooks import on_inputs
from grasp_deploy.pruning.layout import output_projections
from grasp_deploy.pruning.objective import language_loss
from grasp_deploy.pruning.training import freeze
from tests.pruning.criteria.cases import SEQUENCES, TEXT
from tests.pruning.tiny_units import UNITS, frozen


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen3", "mistral-sliding"])
def test_the_scores_are_the_losses_of_both_factors(name: str) -> None:
    """All inputs behind the gates at once, and gradients by autograd."""
    model, mask = frozen(name), torch.ones(UNITS.size)
    mask[UNITS.ffn(1)][::2] = 0
    mask[UNITS.kv(2)][:1] = 0
    inputs: dict[int, Tensor] = {}

    def keep(segment: int, x: Tensor) -> Tensor:
        inputs[segment] = x if x.requires_grad else x.requires_grad_()
        inputs[segment].retain_grad()
        return inputs[segment]

    with gated(model, UNITS) as gates:
        gates.assign(mask)
        scores = obs_scores(model, UNITS, TEXT)
        with on_inputs(output_projections(model), keep):
            (language_loss(model, SEQUENCES) * SEQUENCES[:, 1:].numel()).backward()
    expected = []
    for segment, size in enumerate(UNITS.segment_sizes):
        y, gradient = inputs[segment].detach(), inputs[segment].grad
        assert gradient is not None
        y, g = (x.flatten(0, 1).double() for x in (y, gradient))
        moments = [part.T @ part / len(g) for part in g.split(y.shape[1] // size, dim=1)]
        expected.append(losses_one_by_one(y.T @ y / len(y), torch.stack(moments)))
    torch.testing.assert_close(scores, torch.cat(expected), rtol=1e-3, atol=1e-12)


def test_layers_whose_units_all_stay_are_left_out() -> None:
    model = frozen("llama")
    is_kv = UNITS.is_kv
    every = obs_scores(model, UNITS, TEXT)
    scores = obs_scores(model, UNITS, TEXT, removable=is_kv)
    assert torch.equal(scores[is_kv], every[is_kv]) and every[~is_kv].any()
    assert not scores[~is_kv].any()


def test_checkpointed_activations_give_the_same_scores() -> None:
    model = frozen("llama")
    plain = obs_scores(model, UNITS, TEXT)
    freeze(model, gradient_checkpointing=True)
    torch.testing.assert_close(obs_scores(model, UNITS, TEXT), plain)
