"""Distance of kinds: derived by hand, symmetric, and blind to the order of tokens."""

import math

import pytest
import torch

from grasp_deploy.data import kind
from grasp_deploy.data.kind import frequent_tokens, is_other_kind, kind_distance


def test_the_distance_is_the_divergence_of_the_shares() -> None:
    first, second = torch.tensor([[7, 7, 7, 9]]), torch.tensor([7, 9, 9, 9])
    frequent = frequent_tokens(first)
    assert frequent == {"7": 0.75, "9": 0.25}
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)  # of both halves
    assert kind_distance(second, frequent) == pytest.approx(by_hand)
    assert kind_distance(first.flip(1), frequent) == pytest.approx(0)
    assert kind_distance(torch.tensor([1, 2, 3]), frequent) == pytest.approx(math.log(2))


def test_what_is_not_frequent_counts_as_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "FREQUENT_TOKENS", 1)
    frequent = frequent_tokens(torch.tensor([5, 5, 1, 2]))
    assert frequent == {"5": 0.5}
    assert kind_distance(torch.tensor([5, 3, 5, 4]), frequent) == pytest.approx(0)


def test_other_documents_of_a_kind_are_of_that_kind_and_other_words_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    zipf = 1 / torch.arange(1.0, 501)
    known, other = (zipf.multinomial(20_000, True, generator=generator) for _ in range(2))
    assert not is_other_kind(other, frequent_tokens(known))
    assert is_other_kind(499 - other, frequent_tokens(known))
