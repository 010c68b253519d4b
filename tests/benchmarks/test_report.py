"""`benchmarks.report`: studies drawn beside records of benches."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.common.output import FOLDER
from benchmarks.study.rows import beside
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import write_record
from tests.benchmarks.study.records import study, with_tasks
from tests.documents import changed

RESULTS = FOLDER / "results"
BENCH, GATES, NO_TABLE = (
    str(RESULTS / f"{name}-ref-llama-7m-cpu.json")
    for name in ("kv_capacity", "mask_stability", "gate_step")
)
CURVE = "recovery_curve-smollm2-135m-at-0.8-h100"


@pytest.mark.slow
def test_a_page_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")
    page, figures, record = (tmp_path / name for name in ("page.html", "figures", "small.json"))
    made = with_tasks(study(model="models/<small>"), {"arc_challenge": "acc"}, [0.7, 0.5])
    write_record(record, made.as_record())
    report.main([str(record), BENCH, "--html", str(page), "--png", str(figures), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [row["benchmark"] for row in document["records"]] == ["study", "kv"]
    names = {Path(file).name for file in document["files"]}
    assert names > {"small-loss-c4.png", "small-kept-ffn.png"}
    assert {path.name for path in figures.iterdir()} == names - {"page.html"}
    text = page.read_text()
    assert "&lt;small&gt;" in text, "a name is escaped"
    assert "70.0 ± 3.0" in text and "<b>keep 0.8</b>" in text


def test_tables_of_other_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.main([BENCH, GATES, NO_TABLE, str(RESULTS / f"{CURVE}.json")])
    printed = capsys.readouterr().out
    assert "KV cache" in printed and "Mask-stability" in printed
    assert "Nats per token above dense" in printed
    assert "150 values, median" in printed, "of a kind that has no table of its own"
    assert "schema version" not in printed
    with pytest.raises(InputError, match="--png: none of these records has a figure"):
        report.main([NO_TABLE, "--png", str(tmp_path / "figures")])


def test_rows_of_studies_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """A line joins points of two records only if both were measured alike."""
    names = ("h200", "peers-cpu", "peers-h100", "at-0.8-cpu", "cpu")
    ours, *peers, first, second = (
        str(RESULTS / f"quality_methods-smollm2-135m-{name}.json") for name in names
    )
    report.main([ours, *peers, "--beside"])
    printed = capsys.readouterr().out
    assert "taylor-element, compensated, record 2 │       │       │ 129.1" in printed
    assert "taylor-element, compensated, record 3 │ 45.81 │       │      " in printed
    assert printed.index("default") < printed.index("flap"), "in the order of the records"
    report.main([first, second, "--beside"])
    assert "record 2" not in capsys.readouterr().out
    methods, tasks = (
        str(RESULTS / f"quality_methods{kind}-ref-llama-7m-cpu.json") for kind in ("", "-tasks")
    )
    report.main([methods, tasks, "--beside"])
    assert "Accuracy on tasks, %" in capsys.readouterr().out, "which the first has not run"
    ran = [with_tasks(study(), {name: "acc"}, [0.7, 0.5]) for name in ("piqa", "sciq")]
    with pytest.raises(InputError, match="takes studies of the same tasks, or of none"):
        beside(ran)
    for other in (first, str(RESULTS / "quality_own-stories260K-cpu.json")):
        with pytest.raises(InputError, match="studies of one model on the same texts"):
            report.main([ours, other, "--beside"])


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("quality_own-stories260K-cpu", ("rows",), [], "has no row yet: run its command again"),
        ("budgets-stories260K-cpu", ("dense_perplexity",), {"c4": 9.0}, "not all measured on"),
        ("budgets-stories260K-cpu", ("members", 0, "alone_seconds"), 0, "> 0"),
        (CURVE, ("rows", 0, "excess_nats"), {}, "excess_nats"),
        (CURVE, ("rows", 0, "rate"), None, "no tokens_a_step or rate"),
        (CURVE, ("rows", 0, "divergences"), [0.5], "not two divergences"),
        (CURVE, ("rows",), [], "rows"),
    ],
)
def test_a_damaged_record_is_refused_in_one_line(
    name: str, place: Sequence[str | int], value: object, words: str, tmp_path: Path
) -> None:
    record = changed(json.loads((RESULTS / f"{name}.json").read_text()), place, value)
    write_record(tmp_path / "one.json", record)
    with pytest.raises(InputError, match=words) as refused:
        report.main([str(tmp_path / "one.json")])
    assert "one.json" in str(refused.value) and "\n" not in str(refused.value)
