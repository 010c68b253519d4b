"""Multiple-choice items in local files, so that accuracy needs no network.

A file holds JSON lines, all in one of the three layouts below. They become the prompts that
lm-eval's own ARC, PIQA, WinoGrande and HellaSwag make of the same items.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from grasp_deploy.data.files import read_plain_text
from grasp_deploy.errors import InputError

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
Choices = Annotated[list[Text], msgspec.Meta(min_length=2)]
Index = Annotated[int, msgspec.Meta(ge=0)]


class Query(msgspec.Struct):
    """A query and its continuations; `Answer:` is added to a query that begins `Question:`."""

    query: Text
    choices: Choices
    gold: Index

    def prompt(self) -> tuple[str, list[str], int]:
        """The text beside the choices, the choices, and the right one's index."""
        query = self.query
        if query.startswith("Question:") and "Answer:" not in query:
            query = f"{query.rstrip()}\nAnswer:"
        return query, self.choices, self.gold


class Contexts(msgspec.Struct):
    """A continuation and the contexts that it may follow, as in WinoGrande."""

    context_options: Choices
    continuation: Text
    gold: Index

    def prompt(self) -> tuple[str, list[str], int]:
        return self.continuation, self.context_options, self.gold


class HellaSwag(msgspec.Struct):
    """HellaSwag's own fields, whose texts lose the marks of WikiHow."""

    activity_label: str
    ctx_a: Text
    ctx_b: str
    endings: Choices
    label: Index

    def prompt(self) -> tuple[str, list[str], int]:
        text = f"{self.activity_label}: {self.ctx_a} {self.ctx_b.capitalize()}"
        return _without_marks(text), [_without_marks(e) for e in self.endings], self.label


Layout = type[Query | Contexts | HellaSwag]
LAYOUTS: tuple[Layout, ...] = (Query, Contexts, HellaSwag)


@dataclass(frozen=True)
class TaskFile:
    """Items of a file: `{"text", "choices", "gold"}`, all strings but `gold`, an index.

    `text` stands before the choices, or, where `choices_first`, after them.
    """

    name: str
    items: list[dict[str, Any]]
    choices_first: bool


def read_task_file(path: Path) -> TaskFile:
    """Read a file of items; the task is called after the file.

    Raises InputError for a missing or empty file, and names the first line that is not in the
    layout of the first one.
    """
    lines = enumerate(read_plain_text(path).split("\n"), start=1)
    rows = [(f"line {number} of {path}", line) for number, line in lines if line.strip()]
    if not rows:
        raise InputError(f"--task-file {path} is empty: it needs an item on each line")
    layout = _layout(*rows[0])
    items = [_item(where, line, layout) for where, line in rows]
    return TaskFile(path.stem, items, choices_first=layout is Contexts)


def check_examples(task_file: TaskFile, num_fewshot: int | None) -> None:
    """InputError if an item has too few others to be its examples; copies of it do not count."""
    copies = Counter(json.dumps(item) for item in task_file.items)
    others = len(task_file.items) - max(copies.values())
    if num_fewshot is not None and num_fewshot > others:
        raise InputError(
            f"--num-fewshot {num_fewshot} exceeds the {others} other items that {task_file.name} "
            f"has for the examples of each: ask for {others} or less, or give a longer file"
        )


def _layout(where: str, line: str) -> Layout:
    """The layout whose keys the first item has."""
    try:
        keys = msgspec.json.decode(line, type=dict[str, Any]).keys()
    except msgspec.DecodeError as error:
        raise InputError(f"{where} is not a JSON object ({error}): mend that line") from None
    for layout in LAYOUTS:
        if set(layout.__struct_fields__) <= keys:
            return layout
    known = " or ".join(f"{{{', '.join(layout.__struct_fields__)}}}" for layout in LAYOUTS)
    raise InputError(f"{where} is not a multiple-choice item: write objects with the keys {known}")


def _item(where: str, line: str, layout: Layout) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line, type=layout, strict=False)  # an index may be text
    except msgspec.DecodeError as error:
        raise InputError(
            f"{where} is not a {layout.__name__} item like line 1 ({error}): mend that line, or "
            "put it in another file"
        ) from None
    text, choices, gold = row.prompt()
    if gold >= len(choices):
        raise InputError(
            f"{where} names {gold} as the right one of {len(choices)} choices: give its index, "
            f"0 to {len(choices) - 1}"
        )
    return {"gold": gold, "text": text, "choices": choices}


def _without_marks(text: str) -> str:
    """HellaSwag's text without WikiHow's titles and other marks in brackets."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")
