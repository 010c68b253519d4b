"""Documents of a table: its slices, the column of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from grasp_deploy.data.chat import chat_writer
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Columns = Mapping[str, Sequence[object]]

SPLIT = re.compile(r"(?P<name>[^\[\]]*)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")
SURROGATE = re.compile("[\ud800-\udfff]")
CHAT_COLUMNS = ("messages", "conversations")
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
) -> list[str]:
    """The strings of `column`, or of the one that is the text where none is named.

    With a tokenizer, lists of messages are written by its chat template, special tokens included.
    Messages are `{"role", "content"}` or ShareGPT's `{"from", "value"}`. Raises InputError for a
    column that is not there, a row that is neither, and a template that is missing or refuses.
    """
    if column is None:
        column = _default_column(columns, source)
    if column not in columns:
        raise InputError(
            f"{source} has no column {column!r}; its columns are: {', '.join(columns)}; "
            f"name one of them with {COLUMN_OPTION}"
        )
    texts: list[str] = []
    with ExitStack() as stack:
        write = stack.enter_context(chat_writer(tokenizer)) if tokenizer is not None else None
        for row, value in enumerate(columns[column]):
            where = f"row {row} (counted from 0) of column {column!r} of {source}"
            if isinstance(value, list) and write is not None:
                value = write(value, where)
            if not isinstance(value, str):
                raise InputError(
                    f"{where} is {value!r:.40}, not a string; mend that row or name another column "
                    f"with {COLUMN_OPTION}"
                )
            # JSON can spell halves of surrogate pairs, and no tokenizer takes them.
            if SURROGATE.search(value):
                value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            texts.append(value)
    return texts


def _default_column(columns: Columns, source: object) -> str:
    if "text" in columns:
        return "text"
    for name in CHAT_COLUMNS:
        if any(_is_conversation(value) for value in columns.get(name, ())):
            return name
    strings = [
        name for name, values in columns.items() if all(isinstance(value, str) for value in values)
    ]
    if len(strings) != 1:
        raise InputError(
            f"{source} has no column 'text' and {len(strings)} others of strings; its columns "
            f"are: {', '.join(columns)}; name the one to read with {COLUMN_OPTION}"
        )
    return strings[0]


def _is_conversation(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(message, dict) for message in value)
