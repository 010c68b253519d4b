"""Taylor importance against gradients taken the plain way; the model is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.taylor import taylor_element_scores, taylor_vector_scores
from grasp_deploy.pruning.criteria.taylor_gate import taylor_gate_scores
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import LossError, language_loss
from grasp_deploy.pruning.training import freeze
from tests.pruning.criteria.cases import SEQUENCES, TEXT, score_by_hand
from tests.pruning.tiny_units import GROUP_WIDTH, UNITS, frozen, hooks_of

Scores = Callable[..., Tensor]
ALL = [taylor_vector_scores, taylor_element_scores, taylor_gate_scores]
BIASED = ["llama", "llama-biases", "qwen2", "qwen3"]


def saliency(model: PreTrainedModel) -> dict[str, Tensor]:
    """`g·w` of every parameter, `g` from one backward pass over all blocks at once."""
    trainable = copy.deepcopy(model).requires_grad_(True)
    language_loss(trainable, SEQUENCES).backward()
    return {
        name: parameter.detach() * parameter.grad
        for name, parameter in trainable.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("name", BIASED)
def test_weight_importance_is_the_papers_whatever_the_batch(name: str, batch_size: int) -> None:
    model = frozen(name)
    values = saliency(model)
    vector = score_by_hand(model, values, lambda part: part.sum().abs())
    element = score_by_hand(model, values, lambda part: part.abs().sum())
    got_vector = taylor_vector_scores(model, UNITS, CalibrationText(SEQUENCES, batch_size))
    got_element = taylor_element_scores(model, UNITS, CalibrationText(SEQUENCES, batch_size))
    torch.testing.assert_close(got_vector.float(), vector, rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(got_element.float(), element, rtol=1e-4, atol=1e-7)
    assert bool((got_element >= got_vector).all())


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_gate_importance_is_the_mean_of_each_sequences_absolute_gradient(batch_size: int) -> None:
    model = frozen()
    expected = torch.zeros(UNITS.size)
    with gated(model, UNITS, GROUP_WIDTH) as gates:
        for block in SEQUENCES:
            z = torch.ones(UNITS.size, requires_grad=True)
            gates.assign(z)
            language_loss(model, block[None]).backward()
            expected += z.grad.abs() / len(SEQUENCES)  # type: ignore[union-attr]
    got = taylor_gate_scores(model, UNITS, CalibrationText(SEQUENCES, batch_size))
    torch.testing.assert_close(got.float(), expected, rtol=1e-4, atol=1e-6)


def test_closing_a_gate_a_little_moves_the_loss_by_its_score() -> None:
    model, block = frozen(), SEQUENCES[:1]
    scores = taylor_gate_scores(model, UNITS, CalibrationText(block, 1))
    step = 0.01
    for unit in (UNITS.ffn(0).start + 3, UNITS.kv(0).start, UNITS.kv(2).start + 1):
        losses = []
        for value in (1 - step, 1 + step):
            z = torch.ones(UNITS.size)
            z[unit] = value
            with gated(model, UNITS, GROUP_WIDTH) as gates, torch.no_grad():
                gates.assign(z)
                losses.append(float(language_loss(model, block)))
        slope = abs(losses[1] - losses[0]) / (2 * step)
        assert float(scores[unit]) == pytest.approx(slope, rel=0.01)


@pytest.mark.parametrize("scores", ALL)
def test_gradient_checkpointing_changes_nothing(scores: Scores) -> None:
    model = frozen()
    plain = scores(model, UNITS, TEXT)
    freeze(model, gradient_checkpointing=True)
    torch.testing.assert_close(scores(model, UNITS, TEXT), plain, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("scores", ALL)
def test_half_precision_gives_nearly_the_same_ranking(scores: Scores) -> None:
    exact = scores(frozen(), UNITS, TEXT)
    rough = scores(frozen(dtype=torch.bfloat16), UNITS, TEXT)
    ranks = [result.argsort().argsort().double() for result in (exact, rough)]
    assert float(torch.corrcoef(torch.stack(ranks))[0, 1]) > 0.95


class Stop(Exception):
    pass


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("scores", ALL)
def test_the_model_is_left_frozen_and_unchanged_even_after_an_error(
    scores: Scores, fails: bool
) -> None:
    model = frozen()
    before = copy.deepcopy(model.state_dict())
    progress = []

    def on_batch(done: int, total: int) -> None:
        progress.append((done, total))
        assert all(parameter.grad is None for parameter in model.parameters())
        if fails and done == 4:
            raise Stop

    if fails:
        with pytest.raises(Stop):
            scores(model, UNITS, CalibrationText(SEQUENCES, 2, on_batch))
    else:
        scores(model, UNITS, CalibrationText(SEQUENCES, 2, on_batch))
    assert progress == [(2, 5), (4, 5), (5, 5)][: 2 if fails else 3]
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert hooks_of(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("scores", ALL)
def test_a_loss_that_is_no_number_is_told(scores: Scores) -> None:
    model = frozen()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(LossError, match="stage is nan at step 1"):
        scores(model, UNITS, TEXT)
    assert hooks_of(model) == 0
    assert not any(parameter.requires_grad for parameter in model.parameters())
