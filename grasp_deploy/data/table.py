"""Documents of a table: its slices, its column of texts or chats, and chats as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import cycle
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Columns = Mapping[str, Sequence[object]]
Rows = tuple[str | None, list[str | None]]  # name of the column; texts, None for an empty row

SPLIT = re.compile(r"(?P<name>[^\[\]]*)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")
CHAT_COLUMNS = ("messages", "conversations", "conversation")  # whose strings are turns
TEXT_COLUMNS = ("text", "content", *CHAT_COLUMNS, "turns")  # the first of them is read
SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names, as chat templates know them
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
    bounds: tuple[str, str] = ("", ""),
) -> Rows:
    """The name and the texts of `column`, or, if it is None, of the column that holds text.

    Rows outside of the `bounds`, as `parse_split` gives them, are not looked at.
    With a tokenizer, lists of messages are written by its chat template, special tokens included.
    Messages are `{"role", "content"}`, ShareGPT's `{"from", "value"}` or, in CHAT_COLUMNS, strings.
    Other lists of strings are joined. Without a tokenizer a list's first string, or what its user
    says first, is taken as a prompt. Raises InputError for a column that is not there, any other
    row, and a template that refuses.
    """
    if column is None:
        names = TEXT_COLUMNS if tokenizer is not None else ("prompt", *TEXT_COLUMNS)
        named = [name for name in names if any(columns.get(name, ()))]
        column = named[0] if named else next(iter(columns)) if len(columns) == 1 else None
    if column is None or column not in columns:
        missing = f"no column {column!r}" if column else "no column that is named as a text"
        raise InputError(
            f"{source} has {missing}; its columns are: {', '.join(columns)}; name one of them with "
            f"{COLUMN_OPTION}, or rename a column where tables differ"
        )
    texts: list[str | None] = []
    is_chat = column in CHAT_COLUMNS and tokenizer is not None and tokenizer.chat_template
    count = len(columns[column])
    rows = slice(*(slice_bound(bound, count) for bound in bounds))
    for row, value in zip(range(count)[rows], columns[column][rows], strict=True):
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
        texts.append(value and value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return column, texts


def write_chat(
    tokenizer: PreTrainedTokenizerBase, conversation: list[Any], where: str, *, asks: bool = False
) -> str | None:
    """A conversation as text; with `asks` it ends where the model is to answer.

    Mere strings are the user's and the assistant's by turns. None if nobody says anything. Raises
    InputError for a conversation that is none, and for a template that is missing or refuses.
    """
    if are_strings(conversation):
        roles = cycle(("user", "assistant"))
        conversation = [{"role": next(roles), "content": turn} for turn in conversation]
    messages = [
        _message(value, f"{where}, message {place}") for place, value in enumerate(conversation)
    ]
    if not any(message["content"] or message.get("tool_calls") for message in messages):
        return None
    if tokenizer.chat_template is None:
        raise InputError(
            f"{where} is a conversation, and the model's tokenizer has no chat template to "
            "write it with; give plain text, or a model that was tuned to chat"
        )
    if "tool_calls" not in str(tokenizer.chat_template):  # such a template cannot take null
        messages = [{**message, "content": message["content"] or ""} for message in messages]
    try:
        return str(
            tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=asks,
                tokenize=False,
                strftime_now=date(2024, 7, 26).strftime,  # a text is the same on every day
            )
        )
    except Exception as error:  # whatever a template raises
        raise InputError(
            f"{where} is refused by the chat template of the model's tokenizer "
            f"({first_line(error)}); mend that row or name another column"
        ) from None


def first_prompt(values: list[Any], where: str) -> Any:
    """The first string of a list, or the user's first message in a conversation; None without."""
    if not values or isinstance(values[0], str):
        return next(iter(values), None)
    messages = (_message(value, f"{where}, message {n}") for n, value in enumerate(values))
    return next((message["content"] for message in messages if message["role"] == "user"), None)


def are_strings(values: list[Any]) -> bool:
    """True if a list holds strings alone."""
    return all(isinstance(value, str) for value in values)


def _message(value: object, where: str) -> dict[str, Any]:
    """A message as chat templates take it; other keys stay if they hold anything."""
    fields = value if isinstance(value, dict) else {}
    names = ("role", "content") if "role" in fields else ("from", "value")
    role, content, calls = (fields.get(name) for name in (*names, "tool_calls"))
    if isinstance(content, list):  # of parts, whose texts vLLM joins by line breaks
        texts: list[Any] = [part.get("text") if isinstance(part, dict) else 0 for part in content]
        content = "\n".join(texts) if are_strings(texts) else content
    if content is None and names[1] in fields and not calls:  # beside calls templates look for null
        content = ""
    if not (isinstance(role, str) and role and (isinstance(content, str) or calls)):
        raise InputError(
            f'{where} is {value!r:.60}, not like {{"role": "user", "content": "…"}} or {{"from": '
            '"human", "value": "…"}; mend that row or name another column'
        )
    known = ("role", "content", "from", "value")
    more = {n: held for n, held in fields.items() if n not in known and held not in (None, [])}
    return {"role": SPEAKERS.get(role, role), "content": content, **more}
