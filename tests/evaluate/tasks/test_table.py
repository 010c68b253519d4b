"""The table of tasks, and records of tasks that cannot be drawn."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.table import task_table
from grasp_deploy.report.records import check_record
from tests.bench.records import Record, model, record

RIGHT = {"dense": [1, 1, 1, 0], "pruned": [1, 0, 1, 0]}


def task_record(**changes: Any) -> Record:
    models = [model("dense"), model("pruned", 0.6)]
    cells = [
        {
            "model": name,
            "task": task,
            "metric": metric,
            "accuracy": sum(right) / 4,
            "standard_error": 0.1,
            "num_fewshot": 0,
            "truncated": 0,
            "prompts_sha256": "0",
            "items": [{"item": i, metric: float(r)} for i, r in enumerate(right)],
            **changes,
        }
        for name, right in RIGHT.items()
        for task, metric in (("piqa", "acc_norm"), ("winogrande", "acc"))
    ]
    return record("tasks", models, cells=cells)


def drawn(one: Record) -> list[str]:
    console = Console(width=120, file=StringIO())
    console.print(task_table(one))
    return console.file.getvalue().splitlines()


def test_accuracies_side_by_side_with_paired_changes() -> None:
    rows = {line.split()[1]: line.split("│")[1:-1] for line in drawn(task_record()) if "│" in line}
    cells = [cell.strip() for cell in rows["piqa"]]
    # The change: one item of four lost, so its error is 1/4 as well (of 0, -1, 0, 0).
    assert cells == ["piqa", "acc_norm", "4", "75.0 ± 10.0", "50.0 ± 10.0", "-25.0 ± 25.0"]
    average = [cell.strip() for cell in rows["average"]]
    assert average == ["average", "", "", "75.0 ± 7.1", "50.0 ± 7.1", "-25.0 ± 17.7"]


def test_notes_under_the_table() -> None:
    notes = " ".join(" ".join(drawn(task_record(num_fewshot=5, truncated=3))).split())
    assert "acc_norm where a task has it, else acc" in notes
    assert "unweighted, as in the paper" in notes
    assert "examples in the prompt: piqa 5, winogrande 5; none elsewhere" in notes
    assert "12 prompts were too long and lost their beginning" in notes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["cells"][0].pop("accuracy"), r"cells\[0\] has no accuracy"),
        (lambda r: r["cells"].pop(), "have not run the same tasks"),
        (lambda r: r["cells"][3]["items"][1].pop("acc"), r"cells\[3\] has an item without acc"),
        (lambda r: r["cells"][2].update(items=[]), r"cells\[2\].items is no list of at least one"),
    ],
)
def test_records_that_are_not_whole(change: Any, words: str) -> None:
    one = task_record()
    check_record(one, Path("one.json"))
    change(one)
    with pytest.raises(InputError, match=words):
        check_record(one, Path("one.json"))
