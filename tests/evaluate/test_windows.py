"""Windows over a text: every token is scored at most once, each given as much as fits before it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from grasp_deploy.data import Blocks, Documents, TextSource
from grasp_deploy.evaluate.windows import document_windows, sequence_windows, spans


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
        assert end - start == min(length, tokens)
        scored += range(end - count, end)
    left_out = set(range(tokens)) - set(scored)
    assert len(scored) == len(set(scored))
    if stride < length:
        assert left_out == {0}
    else:  # the first token of each whole window has nothing before it
        assert left_out == set(range(0, tokens // length * length or 1, length))


def test_windows_belong_to_the_sequence_or_document_in_which_they_end() -> None:
    source = TextSource("numbers")
    windows = sequence_windows(Blocks(torch.arange(24).view(3, 8), source, 1), 4)
    assert [window.token_ids[-1].item() for window in windows] == [7, 11, 15, 19, 23]
    assert [window.cluster for window in windows] == [0, 1, 1, 2, 2]
    documents = [torch.arange(5), torch.arange(20), torch.arange(2)]
    windows = document_windows(Documents(documents, source, 0, 8), 8)
    assert [window.cluster for window in windows] == [0, 1, 1, 1, 2]
