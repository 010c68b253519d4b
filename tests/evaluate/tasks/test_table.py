"""The table of tasks."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from grasp_deploy.evaluate.tasks.table import task_table
from tests.evaluate.tasks.task_records import task_record


def drawn(one: dict[str, Any]) -> list[str]:
    text = StringIO()
    Console(width=120, file=text).print(task_table(one))
    return text.getvalue().splitlines()


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
