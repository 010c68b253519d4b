"""Multiple-choice items in local files, so that accuracy needs no network.

A file holds JSON lines, all in one of the three layouts below. They become the prompts that
lm-eval's own ARC, PIQA, WinoGrande and HellaSwag make of the same items.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from grasp_deploy.data.documents import read_plain_text
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


def local_task(path: Path, num_fewshot: int | None = None) -> dict[str, Any]:
    """lm-eval's config of a task with a file's items, called after the file.

    Its examples are other items of the file. Raises InputError for a missing or empty file, names
    the first line that is not in the layout of the first one, and refuses more examples than each
    item has others.
    """
    from datasets import Dataset

    lines = enumerate(read_plain_text(path).split("\n"), start=1)
    rows = [(f"line {number} of {path}", line) for number, line in lines if line.strip()]
    if not rows:
        raise InputError(f"--task-file {path} is empty: it needs an item on each line")
    if num_fewshot is not None and num_fewshot >= len(rows):
        raise InputError(
            f"--num-fewshot {num_fewshot} exceeds the {len(rows) - 1} other items that {path.stem} "
            f"has for the examples of each: ask for {len(rows) - 1} or less, or give a longer file"
        )
    layout = _layout(*rows[0])
    items = [_item(where, line, layout) for where, line in rows]
    # Where the text should be, an index tells lm-eval that the choices come first.
    text, target = ("gold", "text") if layout is Contexts else ("text", "gold")
    metrics = ["acc"] if layout is Contexts else ["acc", "acc_norm"]
    return {
        "task": path.stem,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(items)},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": text,
        "doc_to_choice": "choices",
        "doc_to_target": target,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in metrics
        ],
    }


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
    """Parse an item: its text, the choices that stand before or after it, the right one's index."""
    try:
        row = msgspec.json.decode(line, type=layout, strict=False)  # an index may be text
    except msgspec.DecodeError as error:
        raise InputError(
            f"{where} is not a {layout.__name__} item like the first ({error}): mend that line, or "
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
