"""Records of studies: true ones read and write unchanged, damaged ones are refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.output import FOLDER
from benchmarks.study.record import read_study, study_of
from grasp_deploy.errors import InputError
from tests.benchmarks.study.records import study, with_allocation, with_tasks
from tests.documents import ABSENT, changed

COMMITTED = [
    path
    for path in sorted((FOLDER / "results").glob("*.json"))
    if json.loads(path.read_text())["benchmark"] == "study"
]
PATH, ROW = Path("one.json"), ("rows", 1)


def full_record() -> dict[str, Any]:
    """A study with all that a record of one may hold."""
    made = with_tasks(study(), {"piqa": "acc_norm", "sciq": "acc"}, [0.7, 0.5, 0.6])
    for row in made.rows[:2]:
        with_allocation(row, 0.6, (0.5, -0.5))
    record: dict[str, Any] = json.loads(json.dumps(made.as_record()))
    return record


def test_committed_records_are_read_and_written_unchanged() -> None:
    for path in COMMITTED:
        assert json.loads(json.dumps(read_study(path).as_record())) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("study",), ABSENT, "missing required field `study`"),
        (("dense_perplexity", "ptb"), 9.0, r"rows\[0\] has other corpora than c4, ptb"),
        ((*ROW, "keep"), 1.5, r"rows\[1\].keep: Expected `float` <= 1"),
        ((*ROW, "seed"), 0, r"rows\[1\] repeats default at 0.8 with seed 0"),
        ((*ROW, "kept_per_layer"), [[4, 2]], "has other layers than the 2 of the dense model"),
        ((*ROW, "kept_per_layer", 0), [11, 2], "keeps more of a layer than it has"),
        (("dense_tasks",), ABSENT, r"rows\[0\] has other tasks than the dense model"),
        ((*ROW, "tasks"), ABSENT, r"rows\[1\] has only one of tasks and task_average"),
    ],
)
def test_what_is_refused(place: Sequence[str | int], value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        study_of(changed(full_record(), place, value), PATH)
    assert str(refused.value).startswith("one.json ")
    assert "run its command again, or name another" in str(refused.value)
