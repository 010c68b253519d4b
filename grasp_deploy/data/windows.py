"""Tokens of a long text, a window at a time: tokenizers take hundreds of bytes for each."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grasp_deploy.data.tokenizing import encoded, tokens

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

JOIN = "\n\n"
WINDOW = 2**18  # characters tokenised at once; a token takes some 600 bytes meanwhile
PASSAGE = 2**22  # characters joined at once, of short documents
OVERLAP = 2**12  # characters on each side of a window; longer than any word or run of blanks
AGREEING = 32  # tokens before a cut that both windows must show
LINE = re.compile(r"\n[^\S\n]*(?=\S)")  # up to the first visible character of a line
WORD = re.compile(r"\W(?=\w)")  # up to a word, where no line ends in time


def first_tokens(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], needed: int | None
) -> array[int]:
    """Token ids (int64) of the joined text: all of them, or at least its first `needed`.

    Windows are tokenised one by one, so that memory does not grow with the text. They overlap
    around a cut, the first visible character of a line, or of a word of an endless line:

        … the mat.↵The other cat did not, … the end.↵Then they sat
                                            the end.↵Then they sat, …
                                                     ^ cut

    Tokenizers of these families split at a line's end, and look only a few characters beyond it.
    For any other the two windows' tokens before a cut are compared, and the start of the token at
    it, and tokens count once they agree; if they do not, the text is tokenised in one call.
    """
    ids, before = array("q"), 0
    for text, start, end in _windows(documents):
        window = encoded(tokenizer, text)
        found = array("q", window["input_ids"])
        first, ahead = _token_at(window, start) if start else (0, 0)
        last, after = _token_at(window, end) if end < len(text) else (len(found), 0)
        agree = ahead == before and ids[-AGREEING:] == found[:first][-AGREEING:]
        if None in (first, last) or not agree:
            return array("q", tokens(tokenizer, JOIN.join(documents)))
        if needed is not None and len(ids) >= needed:
            break
        ids += found[first:last]
        before = after
    return ids


def _token_at(window: BatchEncoding, character: int) -> tuple[int | None, int]:
    """Index of a character's first token, and its place there; tokenizers in Python know none."""
    token = window.char_to_token(character) if window.is_fast else None
    span = None if token is None else window.token_to_chars(token)
    return token, character - span.start if span else 0


def _windows(documents: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Windows of the joined text, and the places in each where its own part starts and ends."""
    text, start, rest = "", 0, _passages(documents)
    while True:
        last = max(0, len(text) - OVERLAP)
        cut = LINE.search(text, start + WINDOW, min(start + 2 * WINDOW, last))
        cut = cut or WORD.search(text, start + WINDOW, last)
        left = max(0, start - OVERLAP)
        if cut:
            yield text[left : cut.end() + OVERLAP], start - left, cut.end() - left
            start = cut.end()
        elif more := next(rest, ""):
            text, start = text[left:] + more, start - left
        else:
            yield text[left:], start - left, len(text) - left
            return


def _passages(documents: Sequence[str]) -> Iterator[str]:
    """The joined text in parts of whole documents: a second copy of all would be as large."""
    passage: list[str] = []
    characters = 0
    for index, document in enumerate(documents):
        passage += [JOIN, document] if index else [document]
        characters += len(document)
        if characters >= PASSAGE:
            yield "".join(passage)
            passage, characters = [], 0
    yield "".join(passage)
