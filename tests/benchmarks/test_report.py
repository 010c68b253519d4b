"""`benchmarks.report`: studies drawn beside records of benches, and side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.common.output import FOLDER
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import write_record
from tests.benchmarks.study.records import study, with_tasks

RESULTS = FOLDER / "results"
OTHERS = [RESULTS / f"{name}-ref-llama-7m-cpu.json" for name in ("startup", "kv_capacity")]
TABLES = [RESULTS / f"{name}-ref-llama-7m-cpu.json" for name in ("mask_stability", "gate_step")]


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Records of one study on two models, one of them with tasks."""
    small = with_tasks(study(model="models/small"), {"arc_challenge": "acc"}, [0.7, 0.5])
    paths = [tmp_path / "large.json", tmp_path / "small.json"]
    for path, one in zip(paths, (study(model="models/<large>"), small), strict=True):
        write_record(path, one.as_record())
    return list(map(str, paths))


def test_one_study_of_two_models_side_by_side(
    two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report.main(two)
    assert "Across models: methods" in capsys.readouterr().out
    report.main(two[:1])
    assert "Across models" not in capsys.readouterr().out
    report.main([*two, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [row["benchmark"] for row in document["records"]] == ["study", "study"]


@pytest.mark.slow
def test_a_page_and_figures(
    two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    other = str(OTHERS[0])
    report.main([*two, other, "--html", str(page), "--png", str(figures), "--json"])
    names = {Path(file).name for file in json.loads(capsys.readouterr().out)["files"]}
    expected = {"large-loss-c4.png", "small-kept-ffn.png", "startup-ref-llama-7m-cpu-startup.png"}
    assert names > expected
    assert {path.name for path in figures.iterdir()} == names - {"page.html"}
    text = page.read_text()
    across = text.split("<h3>Across models <small>methods</small></h3>")[1]
    assert "&lt;large&gt;" in across and "0.030 ±0.010" in across
    assert "70.0 ± 3.0" in text and "<b>keep 0.8</b>" in text


def test_tables_of_other_records_and_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main(list(map(str, [*OTHERS, *TABLES])))
    printed = capsys.readouterr().out
    assert "Seconds until a server answers" in printed and "KV cache" in printed
    assert "Units whose state survives" in printed
    assert "150 values, median" in printed, "of a kind that has no table of its own"
    with pytest.raises(InputError, match="--png: none of these records has a figure"):
        report.main([str(TABLES[1]), "--png", str(tmp_path / "figures")])
    record = json.loads(OTHERS[0].read_text())
    record["cells"][0]["cold_seconds"]["samples"] = []
    write_record(tmp_path / "startup.json", record)
    with pytest.raises(InputError, match=r"startup.json does not fit \(cells\[0\].cold_seconds"):
        report.main([str(tmp_path / "startup.json")])
