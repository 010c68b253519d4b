"""`benchmarks.published`: published figures, our rows beside them, and a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import published, report
from benchmarks.study.published_figures import AVERAGE, GRASPRUNE, TABLES, TYR
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from tests.benchmarks.commands import refused, run


def test_published_figures_fit_their_tables() -> None:
    for table in TABLES.values():
        cells = [(f.method, f.keep, name) for f in table.figures for name in f.values]
        assert len(set(cells)) == len(cells)
        assert {keep for _, keep, _ in cells} <= {1.0, *table.keeps}
        assert {name for *_, name in cells} <= set(table.columns)
        assert {*table.corpora, *(task.name for task in table.tasks)} >= {
            name for name in table.columns if name != AVERAGE
        }
    of_tyr = [f.values["wikitext2"] for f in TYR.figures if f.method == "Týr-the-Pruner"]
    assert of_tyr == [5.84, 7.51, 10.29, 16.17]


@pytest.mark.slow
def test_a_run_goes_on_where_its_record_ends(
    tiny: Path,
    texts: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "record.json"
    named = ("--model", str(tiny), "--calibration", str(texts[0]))
    options = ("--smoke", *named, "--work", str(tmp_path / "work"))
    record = run("published", output, *options)
    rows = record["rows"]
    cells = [(row["table"], row["keep"]) for row in rows]
    assert cells == [("tyr", 1.0), ("tyr", 0.5), ("grasprune", 1.0), ("grasprune", 0.4)]
    shape = model_shape(read_config(tiny))
    for row in rows:
        assert row["parameters"] <= published.parameters_at(shape, row["keep"]) <= shape.parameters
        assert row["values"].keys() == TABLES[row["table"]].corpora.keys()
    assert rows[0]["parameters"] == shape.parameters
    printed = capsys.readouterr().out
    assert "without the model's own text" in " ".join(printed.split())
    assert "predicted, not measured" in printed and "ours, " in printed and "16.17" in printed

    output.write_text(json.dumps({**record, "rows": rows[:-1]}))
    plan = tmp_path / "work" / "tiny-grasprune-0.4" / "plan.grasp"
    written = plan.stat().st_mtime_ns
    again = run("published", output, *options)["rows"]
    assert again[:-1] == rows[:-1], "seconds and all: they were not measured twice"
    assert again[-1]["values"] == rows[-1]["values"] and plan.stat().st_mtime_ns == written
    monkeypatch.setattr(published, "measure", None)
    run("published", output, *options)
    capsys.readouterr()
    other = refused("published", capsys, *options, "--seed", "1", "--output", str(output))
    assert "was measured with seed 0, not 1: name another file" in other
    report.main([str(output)])
    assert "Týr-the-Pruner" in capsys.readouterr().out


def test_tasks_run_with_their_examples_and_count_by_the_tables_metric(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bench(_models: Any, settings: Any, *_: Any) -> dict[str, Any]:
        asked.append((settings.num_fewshot, settings.tasks))
        metrics = {"acc,none": 0.25, "acc_norm,none": 0.5}
        few = {"acc,none": 0.25}
        names = settings.tasks
        return {"cells": [{"task": n, "metrics": few if n == "mmlu" else metrics} for n in names]}

    asked: list[Any] = []
    monkeypatch.setattr(published, "bench_tasks", bench)
    found = published.accuracies(TYR, str(tiny), None, lambda row: None)
    assert [examples for examples, _ in asked] == [None, 5] and asked[1][1] == ("mmlu",)
    assert len(found) == 9 and set(found.values()) == {25.0}
    found = published.accuracies(GRASPRUNE, str(tiny), None, lambda row: None)
    assert found[AVERAGE] == 50.0


def test_fineweb_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "remote_documents", lambda *_: ["one\ntwo", "three"])
    published.fineweb_file(tmp_path)
    monkeypatch.setattr(published, "remote_documents", None)
    lines = published.fineweb_file(tmp_path).read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one\ntwo", "three"]


def test_unknown_tables_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--tables", "tyr,nope", "--output", str(tmp_path / "record.json"))
    assert "--tables 'nope' is unknown" in refused("published", capsys, *options)
