"""Multiple-choice items in local files, so that accuracy needs no network.

A file holds JSON lines, all in one of three layouts:

query      `{"query", "choices", "gold"}`: which choice goes on best after the query
contexts   `{"context_options", "continuation", "gold"}`: after which context the continuation fits
           best, as in WinoGrande
hellaswag  HellaSwag's own: `{"activity_label", "ctx_a", "ctx_b", "endings", "label"}`

They become the prompts that lm-eval's own ARC, PIQA, WinoGrande and HellaSwag make of the same
items: a query that begins with `Question:` is followed by a line `Answer:`, and HellaSwag's texts
lose the marks of WikiHow.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.data.files import json_lines
from grasp_deploy.data.table import encodable
from grasp_deploy.errors import InputError

LAYOUTS = {
    "query": ("query", "choices", "gold"),
    "contexts": ("context_options", "continuation", "gold"),
    "hellaswag": ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
}
CHOICES = {"query": "choices", "contexts": "context_options", "hellaswag": "endings"}
INDEX = re.compile(r"[0-9]{1,9}")
TEXTS = {"query": "query", "contexts": "continuation", "hellaswag": "ctx_a"}


@dataclass(frozen=True)
class TaskFile:
    """Items of a file: `{"text", "choices", "gold"}`, all strings but `gold`, an index.

    `text` is what comes before the choices, or, where `choices_first`, after them.
    """

    name: str
    items: list[dict[str, Any]]
    choices_first: bool


def read_task_file(path: Path) -> TaskFile:
    """Read a file of items; the task is called after the file.

    Raises InputError for a file that is missing or no text, and names the first line that is not
    in a known layout, in another one than the first line, or has no such choice as its gold one.
    """
    if not path.is_file():
        raise InputError(f"--task-file {path} does not exist: name a file of JSON lines")
    rows = json_lines(path)
    if not rows:
        raise InputError(f"--task-file {path} is empty: it needs an item on each line")
    layout = _layout(next(iter(rows.values())), f"line {next(iter(rows))} of {path}")
    items = [_item(row, layout, f"line {number} of {path}") for number, row in rows.items()]
    return TaskFile(path.stem, items, choices_first=layout == "contexts")


def _layout(row: object, where: str) -> str:
    for name, keys in LAYOUTS.items():
        if isinstance(row, dict) and set(keys) <= row.keys():
            return name
    known = " or ".join(f"{{{', '.join(keys)}}}" for keys in LAYOUTS.values())
    raise InputError(f"{where} is no multiple-choice item: write objects with the keys {known}")


def _item(row: object, layout: str, where: str) -> dict[str, Any]:
    """One item, checked."""
    if not isinstance(row, dict) or _layout(row, where) != layout:
        raise InputError(f"{where} has another layout than the first line: put it in another file")
    choices, gold = row[CHOICES[layout]], row["label" if layout == "hellaswag" else "gold"]
    if not _texts(choices) or len(choices) < 2:
        raise InputError(f"{where} needs two choices or more, each a text: mend that line")
    gold = int(gold) if isinstance(gold, str) and INDEX.fullmatch(gold) else gold
    if type(gold) is not int or not 0 <= gold < len(choices):  # True is an int too
        raise InputError(
            f"{where} names {gold!r:.40} as the right one of {len(choices)} choices: give its "
            f"index, 0 to {len(choices) - 1}"
        )
    if not _texts([row[TEXTS[layout]]]):
        raise InputError(f"{where} needs a text for {TEXTS[layout]}: mend that line")
    item = PROMPTS[layout](row)
    if not _texts(item["choices"]):
        raise InputError(f"{where} has a choice of nothing but marks in brackets: mend that line")
    choices = [encodable(choice) for choice in item["choices"]]
    return {"gold": gold, "text": encodable(item["text"]), "choices": choices}


def check_examples(task_file: TaskFile, num_fewshot: int | None) -> None:
    """InputError if an item has too few others to be its examples; copies of it do not count."""
    copies = Counter(json.dumps(item) for item in task_file.items)
    others = len(task_file.items) - max(copies.values())
    if num_fewshot is not None and num_fewshot > others:
        raise InputError(
            f"--num-fewshot {num_fewshot} exceeds the {others} other items that {task_file.name} "
            f"has for the examples of each: ask for {others} or less, or give a longer file"
        )


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(v, str) and v.strip() for v in values)


def _of_query(row: Mapping[str, Any]) -> dict[str, Any]:
    query = row["query"]
    if query.startswith("Question:") and "Answer:" not in query:
        query = f"{query.rstrip()}\nAnswer:"
    return {"text": query, "choices": row["choices"]}


def _of_contexts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": row["continuation"], "choices": row["context_options"]}


def _of_hellaswag(row: Mapping[str, Any]) -> dict[str, Any]:
    text = f"{row['activity_label']}: {row['ctx_a']} {str(row['ctx_b']).capitalize()}"
    return {"text": _without_marks(text), "choices": [_without_marks(e) for e in row["endings"]]}


def _without_marks(text: str) -> str:
    """HellaSwag's text without WikiHow's titles and other marks in brackets."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


PROMPTS = {"query": _of_query, "contexts": _of_contexts, "hellaswag": _of_hellaswag}
