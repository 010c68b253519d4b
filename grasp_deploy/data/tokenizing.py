"""Calls of tokenizers, whose files may be a stranger's: what is wrong with one is a reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.data.bounded import Reply, bounded
from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

SAMPLE = 2 * (
    'The quick brown fox jumps over the lazy dog, and 1234567890 others do; it\'s "done" (once)\n'
    "    def f(x):  return x ** 2 / 3.14 \\ y\t# one\r\n\n_-=+[]{}<>@$%^&~`|!?  \n"
    "été naïve Über Ελλάδα русский عربي 你好世界 こんにちは 한국어 🙂 e\u0301\n"
)
MOST_PER_CHARACTER = 16  # tokens; four bytes, or what Unicode's normal forms make of one


def traits(load: Callable[[], PreTrainedTokenizerBase]) -> Reply:
    """What users see of a tokenizer, tried in a child: its "refusal" if it cannot be used."""

    def tried(_question: None) -> Reply:
        tokenizer: Any = load()
        added = " a ".join(sorted(tokenizer.get_added_vocab()))
        ids = [tokenizer(text, verbose=False)["input_ids"] for text in (SAMPLE, added)]
        made = {"tokens": len(ids[0]), "characters": len(tokenizer.decode(ids[0]))}
        for unit, length in made.items():
            if length > MOST_PER_CHARACTER * len(SAMPLE):
                raise InputError(f"it makes {length:,} {unit} of {len(SAMPLE)} characters")
        rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else ""
        return {
            "class": type(tokenizer).__name__,
            "tokens": ids,
            "rules": sha256(rules.encode()).hexdigest(),
            "templates": tokenizer.chat_template,  # and all that they can ask a tokenizer for:
            "specials": tokenizer.special_tokens_map,
        }

    with bounded(tried) as ask:
        return ask(None)


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
def readable_failures() -> Iterator[None]:
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
            f"the model's tokenizer cannot read this text ({type(error).__name__}: "
            f"{first_line(error)}): put the tokenizer files that belong to the model in its folder"
        ) from None
    finally:
        os.dup2(stream, 2)
        os.close(stream)
