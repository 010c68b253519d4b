"""Taylor importance against gradients taken the plain way; the model is left as it was."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.baselines.taylor import (
    taylor_element_scores,
    taylor_gate_scores,
    taylor_vector_scores,
)
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import language_loss
from tests.pruning.criteria.cases import SEQUENCES, score_by_hand
from tests.pruning.tiny_units import UNITS, frozen


def saliency(model: PreTrainedModel) -> dict[str, Tensor]:
    """`g·w` of every parameter, `g` from one backward pass over all sequences at once."""
    trainable = copy.deepcopy(model).requires_grad_(True)
    language_loss(trainable, SEQUENCES).backward()
    return {
        name: parameter.detach() * parameter.grad
        for name, parameter in trainable.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize(("name", "batch_size"), [("llama-biases", 2), ("qwen2", 5), ("qwen3", 1)])
def test_weight_importance_is_the_papers_whatever_the_batch(name: str, batch_size: int) -> None:
    model, text = frozen(name), CalibrationText(SEQUENCES, batch_size)
    values = saliency(model)
    vector = score_by_hand(values, lambda part: part.sum().abs())
    element = score_by_hand(values, lambda part: part.abs().sum())
    got_vector = taylor_vector_scores(model, UNITS, text).float()
    got_element = taylor_element_scores(model, UNITS, text).float()
    torch.testing.assert_close(got_vector, vector, rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(got_element, element, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_gate_importance_is_the_mean_of_each_sequences_absolute_gradient(batch_size: int) -> None:
    model = frozen()
    expected = torch.zeros(UNITS.size)
    with gated(model, UNITS) as gates:
        for sequence in SEQUENCES:
            z = torch.ones(UNITS.size, requires_grad=True)
            gates.assign(z)
            language_loss(model, sequence[None]).backward()
            expected += z.grad.abs() / len(SEQUENCES)  # type: ignore[union-attr]
    got = taylor_gate_scores(model, UNITS, CalibrationText(SEQUENCES, batch_size))
    torch.testing.assert_close(got.float(), expected, rtol=1e-4, atol=1e-6)
