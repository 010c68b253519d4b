"""`report`: tables and verdicts of any record, all files or none, one line for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.files.record import write_record
from tests.bench.records import (
    Record,
    kv_record,
    memory_record,
    model,
    serve_record,
    throughput_record,
)
from tests.cli.command import ENTRY, Ended, assert_refused, environment, grasp_deploy, tree

MODELS = [model("dense"), model("pruned", 0.6)]
GATE_STEP = Path(__file__).parents[2] / "benchmarks/results/gate_step-ref-llama-7m-cpu.json"


def made() -> dict[str, Record]:
    return {
        "throughput": throughput_record(MODELS, gains={"pruned": 1.3}, batches=(1, 8)),
        "memory": memory_record(MODELS),
        "kv": kv_record(MODELS),
        "serve": serve_record(MODELS, failed={"pruned": 1}),
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with one record of each kind."""
    for name, one in made().items():
        write_record(tmp_path / f"{name}.json", one)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def all_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def report(*arguments: str | Path) -> Ended:
    return grasp_deploy("report", *arguments)


def written(folder: Path, change: dict[str, Any], kind: str = "throughput") -> Path:
    path = folder / "changed.json"
    write_record(path, {**made()[kind], **change})
    return path


def test_tables_and_verdicts_of_every_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    ended = report(*all_of(folder))
    assert ended.code == 0, ended.stderr
    for title in ("Throughput", "Speed against the first model", "Memory of a prefill", "KV cache"):
        assert title in ended.stdout, title
    for words in ("pruned: 1.", "the throughput of dense at batch 1 to 8: faster at each"):
        assert words in ended.stdout, words
    assert "pruned: 9 of 4,500 requests failed." in ended.stdout
    assert "weights and KV cache as predicted at each (equal)" in ended.stdout
    assert ended.stderr == ""
    assert all_of(folder) == sorted(folder.iterdir())  # nothing is written unasked


def test_a_record_of_a_study_is_refused(folder: Path) -> None:
    words = ("is a record of gate_step, which is a study", "python -m benchmarks.report")
    assert_refused(report(GATE_STEP), *words)


def test_one_json_document_with_all_verdicts(folder: Path) -> None:
    ended = report(*all_of(folder), "--json")
    document = json.loads(ended.stdout)
    kinds = [row["benchmark"] for row in document["records"]]
    assert kinds == ["kv", "memory", "serve", "throughput"]
    by_kind = {row["benchmark"]: row for row in document["records"]}
    speeds = by_kind["throughput"]["verdicts"]
    assert {row["outcome"] for row in speeds} == {"faster"}
    assert all(row["interval"][0] < row["ratio"] < row["interval"][1] for row in speeds)
    assert all(row["sentence"] for one in document["records"] for row in one["headlines"])
    assert document["files"] == []


def test_page_and_figures(folder: Path) -> None:
    records = all_of(folder)
    ended = report(*records, "--html", "out/page.html", "--png", "out/figures", "--json")
    files = json.loads(ended.stdout)["files"]
    assert sorted(files) == sorted(
        str(p.relative_to(folder)) for p in (folder / "out").rglob("*.*")
    )
    assert "out/figures/throughput-decode-ratio.png" in files
    assert "out/figures/memory-memory.png" in files and "out/figures/kv-kept-kv.png" in files
    assert not any("-kept-" in name and "/kv-" not in name for name in files), "drawn once"
    for path in (folder / "out/figures").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG"), path
    assert "<h2>Verdicts</h2>" in (folder / "out/page.html").read_text()


def test_two_records_of_one_name(folder: Path) -> None:
    (folder / "other").mkdir()
    write_record(folder / "other/memory.json", made()["memory"])
    ended = report("memory.json", "other/memory.json", "--png", "figures", "--json")
    assert [row["name"] for row in json.loads(ended.stdout)["records"]] == ["memory", "memory#2"]
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"memory-memory.png", "memory-2-memory.png"} <= names


def test_what_layers_keep_is_called_after_its_record(folder: Path) -> None:
    others = [model("dense"), model("smaller", 0.4)]
    write_record(folder / "small.json", memory_record(others))
    options = ("--png", "figures", "--html", "page.html")
    assert report("kv.json", "memory.json", "small.json", *options).code == 0
    names = {path.name for path in (folder / "figures").iterdir() if "kept" in path.name}
    assert names == {
        f"{name}-kept-{unit}.png" for name in ("kv", "small") for unit in ("ffn", "kv")
    }
    page = (folder / "page.html").read_text()
    for name, there in {"kv": True, "memory": False, "small": True}.items():
        assert (f"What each layer keeps <small>{name}</small>" in page) == there, name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("cannot be read", "record")),
        ("[]", ("is not a JSON object",)),
        ('{"a": 1}', ("is not a record",)),
        ('{"schema_version": 9, "benchmark": "kv"}', ("schema version 9", "version 1")),
        (
            '{"schema_version": 1, "benchmark": ["kv"], "settings": {}, "machine": {}}',
            ("benchmark: Expected `str`",),
        ),
        ('{"schema_version": 1, "benchmark": "kv"}', ("missing required field",)),
    ],
)
def test_files_that_are_no_records(folder: Path, content: str, words: tuple[str, ...]) -> None:
    (folder / "odd.json").write_text(content)
    assert_refused(report("kv.json", "odd.json"), "odd.json", *words)


def test_records_that_cannot_be_read(folder: Path) -> None:
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00")
    assert_refused(report("missing.json"), "no file missing.json")
    assert_refused(report("bytes.json"), "cannot be read")
    assert_refused(report("."), "cannot be read")
    assert_refused(report("kv.json", "./kv.json"), "twice")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"benchmark": "memory"}, ("does not fit", "cells[0].samples[0]", "`weight_bytes`")),
        (
            {"cells": made()["memory"]["cells"]},
            ("does not fit", "cells[0].samples[0]", "`seconds`"),
        ),
        ({"cells": []}, ("cells: Expected `array` of length >= 1",)),
        ({"models": MODELS[:1]}, ("cells[1]", "'pruned'", "not in models")),
        ({"models": [{"name": "dense"}]}, ("models[0]", "`footprint`")),
        ({"machine": "mine"}, ("machine: Expected `object`, got `str`",)),
    ],
)
def test_records_that_are_mixed_up(
    folder: Path, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert_refused(report(written(folder, change)), "changed.json", *words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("seconds", 0, ("samples[1].seconds: Expected `float` > 0",)),
        ("seconds", None, ("samples[1].seconds: Expected `float`, got `null`",)),
        ("ttft_seconds", float("nan"), ("samples[1].ttft_seconds: Expected `float` > 0",)),
    ],
)
def test_samples_that_cannot_be(folder: Path, key: str, value: Any, words: tuple[str, ...]) -> None:
    cells = made()["throughput"]["cells"]
    cells[0]["samples"][1][key] = value
    assert_refused(report(written(folder, {"cells": cells})), "cells[0]", *words)


def test_places_that_cannot_be_written(folder: Path) -> None:
    (folder / "notes.html").write_text("mine")
    before = tree(folder)
    for options, words in {
        ("--html", "kv.json"): ("was not written by `report`",),
        ("--html", "notes.html"): ("was not written by `report`",),
        ("--html", "."): ("is a folder",),
        ("--html", "/proc/page.html"): ("cannot write /proc/page.html",),
        ("--html", "notes.html/page.html"): ("cannot be written in",),
        ("--png", "kv.json"): ("is a file",),
        ("--png", "/proc/figures"): ("cannot write /proc/figures",),
        ("--png", "x" * 300): ("name is too long",),
        ("--html", "y" * 252): ("name is too long",),
    }.items():
        assert_refused(report("kv.json", *options), *words)
        assert tree(folder) == before, options


def test_only_figures_of_ours_are_replaced(folder: Path) -> None:
    options = ("kv.json", "--png", "figures")
    assert report(*options).code == 0
    (folder / "figures/holiday.png").write_bytes(b"\x89PNG of a beach")
    before = tree(folder)
    assert report(*options).code == 0, "figures of ours may be replaced"
    assert tree(folder) == before, "and what has another name stays"
    mine = folder / "figures/kv-kv-capacity.png"
    mine.write_bytes(b"\x89PNG of a cat")
    before = tree(folder)
    words = ("figures/kv-kv-capacity.png exists", "was not written by `report`", "another folder")
    assert_refused(report(*options), "--png", *words)
    assert tree(folder) == before
    mine.unlink()
    mine.mkdir()
    assert_refused(report(*options), "--png", *words)


def test_without_matplotlib_tables_work_and_figures_say_what_to_install(folder: Path) -> None:
    hidden = f"import sys; sys.modules['matplotlib'] = None; {ENTRY}"

    def without(*options: str) -> Ended:
        command = [sys.executable, "-c", hidden, "report", "kv.json", *options]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        return Ended(done.returncode, done.stdout, done.stderr)

    assert "KV cache" in without().stdout
    assert_refused(without("--png", "figures"), "pip install 'grasp-deploy[plot]'")
