"""Local items: three layouts become lm-eval's own prompts, and odd lines are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.local_items import local_task
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "tasks"
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


def items(path: Path) -> list[dict[str, Any]]:
    """The items as lm-eval gets them."""
    return list(local_task(path)["custom_dataset"]()["test"])


def test_a_question_is_followed_by_answer(tmp_path: Path) -> None:
    first, second = items(written(tmp_path, QUERY, {**QUERY, "query": "Once upon"}))
    assert first == {"text": "Question: Is it?\nAnswer:", "choices": ["yes", "no"], "gold": 1}
    assert second["text"] == "Once upon"
    task = local_task(tmp_path / "items.jsonl")
    assert (task["task"], task["doc_to_text"], task["doc_to_target"]) == ("items", "text", "gold")


def test_contexts_come_before_the_text(tmp_path: Path) -> None:
    path = written(tmp_path, CONTEXTS)
    assert items(path) == [{"text": "won.", "choices": ["It is. Ann", "It is. Bob"], "gold": 0}]
    assert local_task(path)["doc_to_target"] == "text"


def test_hellaswag_loses_its_marks(tmp_path: Path) -> None:
    assert items(written(tmp_path, HELLASWAG)) == [
        {
            "text": "Baking: A man bakes. He Takes the dough",
            "choices": ["and eats it.", "away.. Rest", "up."],
            "gold": 2,
        }
    ]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "items.jsonl is empty"),
        ([[1]], "line 1 .* not a JSON object"),
        ([{"query": "a"}], "line 1 .* not a multiple-choice item: write objects with the keys {qu"),
        ([QUERY, CONTEXTS], "line 2 .* a Query item like the first .*missing.*put it in another"),
        ([{**QUERY, "choices": ["yes"]}], "line 1 .* length >= 2 - at `\\$.choices`"),
        ([{**QUERY, "choices": ["yes", ""]}], "line 1 .* at `\\$.choices.1.`"),
        ([{**QUERY, "gold": 2}], "names 2 as the right one of 2 choices: give its index, 0 to 1"),
        ([{**HELLASWAG, "ctx_a": None}], "line 1 .* at `\\$.ctx_a`"),
    ],
)
def test_odd_lines_are_named(tmp_path: Path, rows: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        local_task(written(tmp_path, *rows))


def test_each_item_needs_other_items_as_examples(tmp_path: Path) -> None:
    path = written(tmp_path, QUERY, {**QUERY, "gold": 0}, {**QUERY, "query": "Why?"})
    local_task(path, num_fewshot=2)
    with pytest.raises(InputError, match=r"--num-fewshot 3 exceeds the 2 other items .* 2 or less"):
        local_task(path, num_fewshot=3)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl cannot be read as text: .*No such file"):
        local_task(tmp_path / "nothing.jsonl")


@needs_lm_eval
@pytest.mark.skipif(not SHARED.is_dir(), reason="the tasks in ../shared are absent")
def test_hellaswag_reads_as_lm_eval_has_it() -> None:
    from lm_eval.tasks.hellaswag.utils import preprocess

    path = SHARED / "hellaswag_1000.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, item in zip(rows, items(path), strict=True):
        text = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        assert item["text"] == preprocess(text)
        assert item["choices"] == [preprocess(ending) for ending in row["endings"]]
