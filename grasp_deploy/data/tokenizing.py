"""Calls of tokenizers; any failure is an InputError, since their files may be a stranger's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

JOIN = "\n\n"
LINE = re.compile(r"\n(?=\S)")
CHARACTERS = 8  # read for each token that is needed; tokens of most texts have fewer
UNSURE = 64  # tokens before a cut, which the text after it might change
SAMPLE = 2 * (
    'The quick brown fox jumps over the lazy dog, and 1234567890 others do; it\'s "done" (once)\n'
    "    def f(x):  return x ** 2 / 3.14 \\ y\t# one\r\n\n_-=+[]{}<>@$%^&~`|!?  \n"
    "été naïve Über Ελλάδα русский عربي 你好世界 こんにちは 한국어 🙂 e\u0301\n"
)


def first_tokens(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], needed: int
) -> list[int]:
    """Token ids of the joined text: at least its first `needed`, or all of fewer.

    A tokenizer takes some 600 bytes for a token, so only the beginning of the text is read: up to
    the end of a line, and twice as much as long as that gives too few tokens.
    """
    text = JOIN.join(documents)
    length = min(CHARACTERS * needed, len(text))  # the engine of `re` takes no huge one
    while (line := LINE.search(text, length)) is not None:
        ids = tokens(tokenizer, text[: line.end()])
        if len(ids) >= needed + UNSURE:
            return ids[:-UNSURE]
        length *= 2
    return tokens(tokenizer, text)


def start_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token that must begin each sequence for the model to predict it well; often none.

    `load_tokenizer` knows the family. Without the token Gemma-3-270m has a perplexity of 50 on
    WikiText-2, and of 22 with it.
    """
    needs_it = getattr(tokenizer, "needs_first_token", False)
    return [tokenizer.bos_token_id] if needs_it and tokenizer.bos_token_id is not None else []


def tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a text, on request with those around it; InputError where that fails."""
    with readable_failures():
        ids: list[int] = tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)[
            "input_ids"
        ]
    start = start_of(tokenizer) if add_special_tokens else []
    return ids if ids[: len(start)] == start else start + ids


@contextmanager
def readable_failures(what: str = "the model's tokenizer cannot read this text") -> Iterator[None]:
    """Turn any failure of a tokenizer, a panic of Rust included, into an InputError of one line.

    Nothing reaches the error stream meanwhile, since a panic prints by itself.
    """
    stream = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    except InputError:
        raise
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
