"""Losses that learning minimises."""

from __future__ import annotations

import math

import pytest
import torch

from grasp_deploy.pruning.objective import distillation_loss, language_loss, mean_loss
from tests.pruning.tiny_units import frozen, token_ids


def test_distillation_is_the_mean_divergence_over_positions() -> None:
    """Two tokens, one position each way: 0.75·ln(0.75/0.5) + 0.25·ln(0.25/0.5), and 0."""
    dense = torch.tensor([[[math.log(3.0), 0.0], [1.0, 1.0]]])
    pruned = torch.tensor([[[5.0, 5.0], [7.0, 7.0]]])
    expected = (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)) / 2
    assert float(distillation_loss(dense, pruned)) == pytest.approx(expected, rel=1e-5)
    assert float(distillation_loss(dense, dense + 3)) == pytest.approx(0, abs=1e-6)


def test_the_texts_own_loss_is_that_of_transformers() -> None:
    model, ids = frozen(), token_ids(3, 16)
    expected = model(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(language_loss(model, ids), expected)


def test_every_sequence_counts_the_same_in_the_mean() -> None:
    model, ids = frozen(), token_ids(5, 16)
    assert mean_loss(model, ids, 2) == pytest.approx(mean_loss(model, ids, 5), rel=1e-6)
