"""Windows of tokens that the model sees together, and the tokens scored in them.

A window is a run of tokens of one text; its last `scored` tokens are predicted, each from all
before it in the window. Windows that advance by less than their length give each scored token more
to go by. The price is that most tokens run more than once:

    length 6, stride 2     0 1 2 3 4 5            scores 1 2 3 4 5
                               2 3 4 5 6 7        scores 6 7
                                   4 5 6 7 8 9    scores 8 9
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grasp_deploy.data import Blocks, Documents


@dataclass(frozen=True)
class Window:
    """Tokens `(T,)` int64, the number scored at the end, and their sequence or document.

    Losses of one cluster are pooled in the standard error, since neighbouring tokens are alike.
    """

    token_ids: Tensor
    scored: int
    cluster: int


def sequence_windows(text: Blocks, stride: int) -> list[Window]:
    """Windows of `T` tokens over the running text of `(n, T)` sequences, `stride` tokens apart.

    Every token but the text's first is scored once; a stride of `T` gives the sequences
    themselves. A window belongs to the sequence in which it ends.
    """
    length, (running,) = text.token_ids.shape[1], text.running_texts
    return [
        Window(running[start:end], scored, (end - 1) // length)
        for start, end, scored in spans(len(running), length, stride)
    ]


def document_windows(text: Documents, stride: int) -> list[Window]:
    """Windows of each document alone; one of at most `sequence_length` tokens is one window."""
    return [
        Window(document[start:end], scored, index)
        for index, document in enumerate(text.running_texts)
        for start, end, scored in spans(len(document), text.sequence_length, stride)
    ]


def spans(tokens: int, length: int, stride: int) -> list[tuple[int, int, int]]:
    """Start, end and number of scored tokens of each window over a text of so many tokens.

    The last window ends with the text and scores what is left. Where the stride is the length,
    each window's first token has nothing before it and is not scored.
    """
    end = min(length, tokens)
    windows = [(0, end, end - 1)]
    while end < tokens:
        new_end = min(end + stride, tokens)
        start = max(0, new_end - length)
        windows.append((start, new_end, min(new_end - end, new_end - start - 1)))
        end = new_end
    return windows
