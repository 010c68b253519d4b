"""Documents of a table: its slices, the column of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grasp_deploy.data.chat import are_strings, first_prompt, write_chat
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Columns = Mapping[str, Sequence[object]]
Rows = tuple[str | None, list[str | None]]  # the column read; the texts, None for nothing

SPLIT = re.compile(r"(?P<name>[^\[\]]*)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")
SURROGATE = re.compile("[\ud800-\udfff]")
CHAT_COLUMNS = ("messages", "conversations", "conversation")  # whose strings are turns
TEXT_COLUMNS = ("text", "content", *CHAT_COLUMNS, "turns")  # the first of them is read
COLUMN_OPTION = "--calibration-column (to evaluate: --column)"


def parse_split(split: str) -> tuple[str, str, str]:
    """Name and bounds of `NAME[START:STOP]`, each possibly empty; bounds as written."""
    match = SPLIT.fullmatch(split)
    if not match:
        raise InputError(
            f"split {split!r:.60} is not understood; write it as train, train[:900], train[900:] "
            "or train[10%:20%]"
        )
    return match["name"], match["start"] or "", match["stop"] or ""


def slice_bound(bound: str, rows: int) -> int | None:
    """A bound such as `900`, `-100` or `10%` (rounded to a row, as `datasets` does) as an index."""
    if bound.endswith("%"):
        return round(int(bound[:-1]) * rows / 100)
    return int(bound) if bound else None


def texts_of(
    columns: Columns,
    column: str | None,
    source: object,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Rows:
    """The texts of `column`, or of the one that is the text where none is named, and its name.

    With a tokenizer, lists of messages are written by its chat template, special tokens included.
    Messages are `{"role", "content"}`, ShareGPT's `{"from", "value"}` or, in CHAT_COLUMNS, strings.
    Other lists of strings are joined. Without a tokenizer a list's first string, or what its user
    says first, is taken as a prompt. Raises InputError for a column that is not there, any other
    row, and a template that refuses.
    """
    if column is None:
        names = TEXT_COLUMNS if tokenizer is not None else ("prompt", *TEXT_COLUMNS)
        column = _default_column(columns, names, source)
    if column not in columns:
        raise InputError(
            f"{source} has no column {column!r}; its columns are: {', '.join(columns)}; "
            f"name one of them with {COLUMN_OPTION}"
        )
    texts: list[str | None] = []
    is_chat = column in CHAT_COLUMNS and tokenizer is not None and tokenizer.chat_template
    for row, value in enumerate(columns[column]):
        where = f"row {row} (counted from 0) of column {column!r} of {source}"
        if isinstance(value, list):
            if tokenizer is None:
                value = first_prompt(value, where)
            elif is_chat or not are_strings(value):
                value = write_chat(tokenizer, value, where)
            else:
                value = "\n\n".join(value) or None
        if not isinstance(value, str | None):
            raise InputError(
                f"{where} is {value!r:.40}, not a string; mend that row or name another column "
                f"with {COLUMN_OPTION}"
            )
        # JSON can spell halves of surrogate pairs, and no tokenizer takes them.
        if value and SURROGATE.search(value):
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        texts.append(value)
    return column, texts


def _default_column(columns: Columns, names: Sequence[str], source: object) -> str:
    """The column that is named as texts are and holds something, or the only one."""
    named = [name for name in names if any(columns.get(name, ()))]
    if named or len(columns) == 1:
        return [*named, *columns][0]
    firsts = (next((v for v in each if v not in (None, "")), None) for each in columns.values())
    samples = [f"{name} ({first!r:.40})" for name, first in zip(columns, firsts, strict=True)]
    raise InputError(
        f"{source} has no column that is named as a text ({', '.join(names)}); its columns "
        f"are: {', '.join(samples)}; name the one to read with {COLUMN_OPTION}"
    )
