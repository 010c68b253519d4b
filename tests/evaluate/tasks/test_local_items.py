"""Local items: three layouts become lm-eval's own prompts, and odd lines are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.local_items import check_examples, read_task_file
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "tasks"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the tasks in ../shared are absent")
QUERY = {"query": "Question: Is it?\n", "choices": ["yes", "no"], "gold": 1}
CONTEXTS = {"context_options": ["It is. Ann", "It is. Bob"], "continuation": "won.", "gold": 0}
HELLASWAG = {
    "activity_label": "Baking",
    "ctx_a": "A man bakes.  He",
    "ctx_b": "takes the DOUGH",
    "endings": ["and [substep] eats it.", "away. [title] Rest", "up."],
    "label": "2",
}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "items.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_question_is_followed_by_answer(tmp_path: Path) -> None:
    task_file = read_task_file(written(tmp_path, QUERY, {**QUERY, "query": "Once upon"}))
    assert (task_file.name, task_file.choices_first) == ("items", False)
    assert [item["text"] for item in task_file.items] == [
        "Question: Is it?\nAnswer:",
        "Once upon",
    ]
    assert task_file.items[0] == {**task_file.items[0], "choices": ["yes", "no"], "gold": 1}


def test_contexts_come_before_the_text(tmp_path: Path) -> None:
    task_file = read_task_file(written(tmp_path, CONTEXTS))
    assert task_file.choices_first
    assert task_file.items == [{"text": "won.", "choices": ["It is. Ann", "It is. Bob"], "gold": 0}]


def test_hellaswag_loses_its_marks(tmp_path: Path) -> None:
    (item,) = read_task_file(written(tmp_path, HELLASWAG)).items
    assert item["text"] == "Baking: A man bakes. He Takes the dough"
    assert item["choices"] == ["and eats it.", "away.. Rest", "up."]
    assert item["gold"] == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "items.jsonl is empty"),
        ([[1]], "line 1 .* not a JSON object"),
        ([{"query": "a"}], "line 1 .* not a multiple-choice item: write objects with the keys {qu"),
        ([QUERY, CONTEXTS], "line 2 .* not a Query item like line 1 .*missing.*put it in another"),
        ([{**QUERY, "choices": ["yes"]}], "line 1 .* length >= 2 - at `\\$.choices`"),
        ([{**QUERY, "choices": ["yes", ""]}], "line 1 .* at `\\$.choices.1.`"),
        ([{**QUERY, "gold": 2}], "names 2 as the right one of 2 choices: give its index, 0 to 1"),
        ([{**QUERY, "gold": "b"}], "line 1 .* at `\\$.gold`"),
        ([{**HELLASWAG, "ctx_a": None}], "line 1 .* at `\\$.ctx_a`"),
    ],
)
def test_odd_lines_are_named(tmp_path: Path, rows: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_task_file(written(tmp_path, *rows))


def test_each_item_needs_other_items_as_examples(tmp_path: Path) -> None:
    rows = [QUERY, {**QUERY, "gold": 0}, {**QUERY, "query": "Why?"}]
    three, copied = (read_task_file(written(tmp_path, *r)) for r in (rows, [*rows, QUERY]))
    for task_file in (three, copied):
        check_examples(task_file, None)
        check_examples(task_file, 2)
        with pytest.raises(InputError, match=r"--num-fewshot 3 exceeds the 2 other items .* 2 or"):
            check_examples(task_file, 3)


def test_files_that_are_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl cannot be read: No such file"):
        read_task_file(tmp_path / "nothing.jsonl")
    (tmp_path / "odd.jsonl").write_text('\n{"query"')
    with pytest.raises(InputError, match=r"line 2 of .*odd\.jsonl is not a JSON object \(.*\): m"):
        read_task_file(tmp_path / "odd.jsonl")


@needs_lm_eval
@needs_shared
def test_hellaswag_reads_as_lm_eval_has_it() -> None:
    from lm_eval.tasks.hellaswag.utils import preprocess

    path = SHARED / "hellaswag_1000.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, item in zip(rows, read_task_file(path).items, strict=True):
        text = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        assert item["text"] == preprocess(text)
        assert item["choices"] == [preprocess(ending) for ending in row["endings"]]
