"""The loss that learning minimises."""

import pytest
import torch

from grasp_deploy.pruning.objective import language_loss, mean_loss
from tests.pruning.tiny_units import frozen, token_ids


def test_the_texts_own_loss_is_that_of_transformers() -> None:
    model, ids = frozen(), token_ids(3, 16)
    expected = model(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(language_loss(model, ids), expected)


def test_every_sequence_counts_the_same_in_the_mean() -> None:
    model, ids = frozen(), token_ids(5, 16)
    assert mean_loss(model, ids, 2) == pytest.approx(mean_loss(model, ids, 5), rel=1e-6)
