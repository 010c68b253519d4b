"""Calls of tokenizers, whose files may be a stranger's: any failure of one is one line."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

JOIN = "\n\n"
PIECE = 2**18  # characters tokenised at once; a token takes some 600 bytes meanwhile
CONTEXT = 2**6  # characters of its neighbours that a piece is read with
LINE = re.compile(r"\n(?=\S)")
WORD = re.compile(r"\w (?=\w)")  # where no line ends in time
SAMPLE = 2 * (
    'The quick brown fox jumps over the lazy dog, and 1234567890 others do; it\'s "done" (once)\n'
    "    def f(x):  return x ** 2 / 3.14 \\ y\t# one\r\n\n_-=+[]{}<>@$%^&~`|!?  \n"
    "été naïve Über Ελλάδα русский عربي 你好世界 こんにちは 한국어 🙂 e\u0301\n"
)


def first_tokens(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], needed: int | None
) -> array[int]:
    """Token ids (int64) of the joined text: all of them, or at least its first `needed`.

    Tokenisers take hundreds of bytes for a token, so the text is read in pieces of whole lines.
    Tokenizers of these families split where a line ends: the tokens are those of one call.
    """
    text, ids, start = JOIN.join(documents), array("q"), 0
    while start < len(text) and (needed is None or len(ids) < needed):
        line = LINE.search(text, start + PIECE, start + 2 * PIECE)
        cut = line or WORD.search(text, start + PIECE)
        end, left = cut.end() if cut else len(text), max(0, start - CONTEXT)
        piece = encoded(tokenizer, text[left : end + CONTEXT])
        found = array("q", piece["input_ids"])
        first = _token_at(piece, start - left) if start else 0
        last = _token_at(piece, end - left) if cut else len(found)
        if first is None or last is None:  # it does not say, or drops what begins the line
            return array("q", tokens(tokenizer, text))
        ids += found[first:last]
        start = end
    return ids


def _token_at(piece: BatchEncoding, character: int) -> int | None:
    """Index of a character's first token; tokenizers in Python know none."""
    return piece.char_to_token(character) if piece.is_fast else None


def tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a text; InputError where the tokenizer fails on it."""
    ids: list[int] = encoded(tokenizer, text, add_special_tokens=add_special_tokens)["input_ids"]
    return ids


def encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = False
) -> BatchEncoding:
    """Token ids of a text and their places in it; raises as `tokens` does."""
    with readable_failures():
        return tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)


@contextmanager
def readable_failures(
    what: str = "the model's tokenizer cannot read this text",
) -> Iterator[None]:
    """Turn any failure of a tokenizer into one line, and Rust's panics, which print by themselves.

    Nothing reaches the error stream meanwhile.
    """
    stream = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # such as a signal; Rust's class cannot be imported
        raise InputError(
            f"{what} ({type(error).__name__}: {first_line(error)}): put the tokenizer files that "
            "belong to the model in its folder"
        ) from None
    finally:
        os.dup2(stream, 2)
        os.close(stream)


def traits(tokenizer: Any) -> dict[str, Any]:
    """What decides the tokens of a text and of a chat; fails where the tokenizer cannot be used."""
    added = " a ".join(sorted(tokenizer.get_added_vocab()))
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else ""
    return {
        "class": type(tokenizer).__name__,
        "tokens": [tokenizer(text, verbose=False)["input_ids"] for text in (SAMPLE, added)],
        "rules": sha256(rules.encode()).hexdigest(),
        "templates": tokenizer.chat_template,  # and all that they can ask a tokenizer for:
        "specials": tokenizer.special_tokens_map,
    }
