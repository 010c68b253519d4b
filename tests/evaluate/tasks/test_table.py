"""The table of tasks."""

import pytest

from grasp_deploy.evaluate.tasks.table import headlines, tables
from tests.bench.records import lines_of, typed
from tests.evaluate.tasks.task_records import task_record


def test_accuracies_side_by_side_with_paired_changes() -> None:
    (table,) = tables(typed(task_record()))
    lines = [line for line in lines_of(table, width=120) if "│" in line]
    rows = {line.split()[1]: line.split("│")[1:-1] for line in lines}
    cells = [cell.strip() for cell in rows["piqa"]]
    # The change: one item of four lost, so its error is 1/4 as well (of 0, -1, 0, 0).
    assert cells == ["piqa", "acc_norm", "4", "75.0 ± 10.0", "50.0 ± 10.0", "-25.0 ± 25.0"]
    average = [cell.strip() for cell in rows["average"]]
    assert average == ["average", "", "", "75.0 ± 7.1", "50.0 ± 7.1", "-25.0 ± 17.7"]


def test_prompts_that_were_cut_count_once() -> None:
    """Each model on each of the two tasks cut the same three prompts."""
    (table,) = tables(typed(task_record(truncated=3)))
    text = " ".join(" ".join(lines_of(table, width=120)).split())
    assert "at least 6 prompts were too long" in text


def test_tasks_that_stay_without_examples_are_named() -> None:
    record = task_record()
    record["settings"]["num_fewshot"] = 5
    for own, words in ((0, "number is 0: winogrande"), (None, "")):  # a group whose tasks differ
        for cell in record["cells"]:
            cell["num_fewshot"] = 5 if cell["task"] == "piqa" else own
        (table,) = tables(typed(record))
        text = " ".join(" ".join(lines_of(table, width=120)).split())
        assert ("does not change" in text) is bool(words) and words in text
    assert "examples in the prompt: piqa 5" in text


@pytest.mark.parametrize(
    ("lost", "outcome"),
    [
        ([0] * 30, "no difference beyond noise"),
        ([1] + [0] * 29, "no difference beyond noise"),  # 1.4 errors
        ([1] * 9 + [0] * 21, "behind"),
        ([-1] * 9 + [0] * 21, "ahead"),
        ([1] * 9 + [0] * 20, "undecided"),
        ([1] * 30, "undecided"),
        ([1], "undecided"),
    ],
)
def test_the_average_is_judged_by_its_paired_error(lost: list[int], outcome: str) -> None:
    record = task_record()
    for cell in record["cells"]:
        worse = [loss if cell["model"] == "pruned" else 0 for loss in lost]
        right = [float((sum(lost) > 0) - loss) for loss in worse]
        cell["items"] = [{cell["metric"]: one} for one in right]
        cell["accuracy"] = sum(right) / len(right)
    (line,) = headlines(typed(record))
    assert (line["model"], line["baseline"], line["outcome"]) == ("pruned", "dense", outcome)
    assert line["sentence"].startswith(f"{outcome}: ")
    assert ("takes the same 30 or more items" in line["sentence"]) == (outcome == "undecided")
