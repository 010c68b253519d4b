"""Records of tasks: whole ones are read, others name what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.accuracy import read_tasks_record
from grasp_deploy.files.record import write_record
from tests.evaluate.tasks.task_records import task_record

Record = dict[str, Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.update(benchmark="kv"), r"is a record of kv, not of tasks: run"),
        (lambda r: r["cells"][0].update(accuracy=1.5), r"cells\[0\].accuracy: "),
        (lambda r: r["cells"][2].update(items=[]), r"cells\[2\].items: .*length >= 1"),
        (lambda r: r["cells"][3]["items"][1].pop("acc"), r"cells\[3\]: an item of .* has no acc"),
        (lambda r: r["cells"][3].update(model="x"), r"cells\[3\].model is 'x', which is not in"),
        (lambda r: r["models"][1].update(name="dense"), "two of its models have one name"),
        (lambda r: r.update(cells=[]), r"cells: .*length >= 1"),
        (lambda r: r["cells"].pop(), "have not run the same tasks"),
    ],
)
def test_records_that_are_not_whole(
    change: Callable[[Record], object], words: str, tmp_path: Path
) -> None:
    record = task_record()
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(record))
    assert read_tasks_record(path) == record
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"tasks.json .*{words}") as caught:
        read_tasks_record(path)
    assert "\n" not in str(caught.value)


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path / "tasks.json", task_record(accuracy=float("nan")))
    assert not list(tmp_path.iterdir())
