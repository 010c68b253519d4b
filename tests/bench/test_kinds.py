"""Records on their way to a report: whole ones are drawn, damaged ones are refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench.kinds import KINDS, read_sections
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import read_record, write_record
from tests.bench import records
from tests.documents import ABSENT, changed
from tests.evaluate.tasks.task_records import task_record

MODELS = [records.model("dense"), records.model("pruned", 0.6)]
RESULTS = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("*.json"))
MADE = {
    "throughput": records.throughput_record(MODELS, batches=(1, 8)),
    "memory": records.memory_record(MODELS),
    "kv": records.kv_record(MODELS),
    "serve": records.serve_record(MODELS),
    "tasks": task_record(),
}
Place = tuple[str | int, ...]
SAMPLE: Place = ("cells", 0, "samples", 0)
CELLS = MADE["throughput"]["cells"]
FEWER = CELLS[1]["samples"][:1]
NOT_MEASURED = [{**cell, "samples": [], "refused": "too large"} for cell in CELLS]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_committed_record_of_a_bench_is_drawn_and_judged(path: Path) -> None:
    document = read_record(path)
    if document["benchmark"] not in KINDS:
        with pytest.raises(InputError, match=r"studies: draw it with `python -m bench"):
            read_sections([path])
        return
    (section,) = read_sections([path])
    assert section.tables
    assert bool(section.headlines) == (len(document["models"]) > 1), "one alone beats none"
    assert all(line["outcome"] for line in section.headlines)
    assert all(line["sentence"].endswith(".") for line in section.headlines)


@pytest.mark.parametrize(
    ("kind", "place", "value", "words"),
    [
        ("throughput", (*SAMPLE, "seconds"), 0, r"cells\[0\].samples\[0\].seconds.* >= 1e-12"),
        ("throughput", ("cells", 0, "batch"), None, r"cells\[0\].batch.*got `null`"),
        ("throughput", ("models",), MODELS[:1], r"cells\[1\].model is 'pruned', which is not"),
        ("throughput", ("models",), [MODELS[0]] * 2, "have one name: dense, dense"),
        ("throughput", ("cells", 1, "samples"), FEWER, r"cells\[1\] has 1 repetitions, and .* 3"),
        ("throughput", ("cells",), NOT_MEASURED, "none of its cells has a sample"),
        ("throughput", ("models", 0, "footprint", "parameters"), 1, "do not fit together"),
        ("serve", (*SAMPLE, "output_tokens_per_second"), 1e300, "output_tokens_per_second.* <="),
        ("serve", ("cells", 0, "samples"), [], r"cells\[0\].samples"),
        ("tasks", ("cells", 0, "accuracy"), 1.5, r"cells\[0\].accuracy: "),
        ("tasks", ("cells", 2, "items"), [], r"cells\[2\].items: .*length >= 1"),
        ("tasks", ("cells", 3, "items", 1, "acc"), ABSENT, r"cells\[3\]: an item of .* has no acc"),
        ("tasks", ("cells", 3, "model"), "x", r"cells\[3\].model is 'x', which is not in"),
        ("tasks", ("models", 1, "name"), "dense", "two of its models have one name"),
        ("tasks", ("cells",), [], r"cells: .*length >= 1"),
        ("tasks", ("cells", 3), ABSENT, "have not run the same tasks"),
    ],
)
def test_what_is_refused(kind: str, place: Place, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        records.typed(changed(MADE[kind], place, value))
    assert str(refused.value).startswith("one.json") and "\n" not in str(refused.value)


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path / "tasks.json", task_record(accuracy=float("nan")))
    assert not list(tmp_path.iterdir())
