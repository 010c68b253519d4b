"""Windows over a text: every token is scored at most once, each given as much as fits before it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grasp_deploy.evaluate.windows import document_windows, padded, sliding_windows, spans
from grasp_deploy.stats.clustered import clustered_error, perplexity_interval


def test_the_drawing_of_the_module() -> None:
    assert spans(10, 6, 2) == [(0, 6, 5), (2, 8, 2), (4, 10, 2)]


@given(tokens=st.integers(2, 60), length=st.integers(2, 20), data=st.data())
def test_every_token_is_scored_once_given_as_much_as_fits(
    tokens: int, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    scored: list[int] = []
    for start, end, count in spans(tokens, length, stride):
        assert 0 <= start < end - count <= end <= tokens
        assert end - start <= length
        assert end - start == min(length, tokens)
        scored += range(end - count, end)
    left_out = set(range(tokens)) - set(scored)
    assert len(scored) == len(set(scored))
    if stride < length:
        assert left_out == {0}
    else:  # the first token of each whole window has nothing before it
        assert left_out == set(range(0, tokens // length * length or 1, length))


def test_windows_belong_to_the_block_or_document_in_which_they_end() -> None:
    blocks = torch.arange(24).view(3, 8)
    windows = sliding_windows(blocks, 4)
    assert [window.token_ids[-1].item() for window in windows] == [7, 11, 15, 19, 23]
    assert [window.cluster for window in windows] == [0, 1, 1, 2, 2]
    documents = [torch.arange(5), torch.arange(20), torch.arange(2)]
    assert [w.cluster for w in document_windows(documents, 8, 8)] == [0, 1, 1, 1, 2]


def test_a_batch_is_filled_up_behind() -> None:
    windows = document_windows([torch.tensor([4, 5]), torch.tensor([6, 7, 8])], 8, 8)
    assert padded(windows).tolist() == [[4, 5, 0], [6, 7, 8]]


def test_the_error_of_clusters_of_several_sizes() -> None:
    # Two clusters, 1 nat over 1 token and 6 over 3: the mean is 7/4, the deviations are -3/4, 3/4.
    assert clustered_error([1.0, 6.0], [1, 3]) == pytest.approx(
        math.sqrt(2 / 1 * (0.75**2 + 0.75**2)) / 4
    )
    assert clustered_error([3.0], [2]) is None
    assert clustered_error([2.0, 4.0], [1, 2]) == 0.0


def test_the_interval_of_a_perplexity() -> None:
    assert perplexity_interval(1.0, None) is None
    assert perplexity_interval(709.0, 1.0) is None  # beyond what floats hold
    low, high = perplexity_interval(2.0, 0.1) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(math.exp(1.804)), pytest.approx(math.exp(2.196)))
