"""`report`: tables and verdicts of any record, all files or none, one line for bad input."""

import json
from pathlib import Path

import pytest

from grasp_deploy.files.record import write_record
from tests.bench.records import kv_record, memory_record, model, serve_record, throughput_record
from tests.cli.command import Ended, assert_refused, grasp_deploy, run_process, tree

MODELS = [model("dense"), model("pruned", 0.6)]
HIDDEN = "import sys; sys.modules['matplotlib'] = None; from grasp_deploy.cli import main; main()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with one record of each kind."""
    records = {
        "throughput": throughput_record(MODELS, gains={"pruned": 1.3}, batches=(1, 8)),
        "memory": memory_record(MODELS),
        "kv": kv_record(MODELS),
        "serve": serve_record(MODELS, failed={"pruned": 1}),
    }
    for name, record in records.items():
        write_record(tmp_path / f"{name}.json", record)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*arguments: str | Path) -> Ended:
    return grasp_deploy("report", *arguments)


def test_tables_and_verdicts_of_every_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    records = sorted(folder.iterdir())
    ended = report(*records)
    assert (ended.code, ended.stderr) == (0, "")
    for title in ("Throughput", "Throughput against the first", "Memory of a prefill", "KV cache"):
        assert title in ended.stdout, title
    for words in ("pruned: 1.", "the throughput of dense at batch 1 to 8 (ideal"):
        assert words in ended.stdout, words
    assert "pruned: 9 of 4,500 requests failed." in ended.stdout
    assert "weights and KV cache as predicted (equal)" in ended.stdout
    assert records == sorted(folder.iterdir())  # nothing is written unasked
    document = json.loads(report(*records, "--json").stdout)
    by_kind = {row["benchmark"]: row for row in document["records"]}
    assert list(by_kind) == ["kv", "memory", "serve", "throughput"]
    speeds = by_kind["throughput"]["headlines"]
    assert {row["outcome"] for row in speeds} == {"faster"}
    assert all(row["sentence"] for one in document["records"] for row in one["headlines"])
    assert document["files"] == []


def test_page_and_figures(folder: Path) -> None:
    options = ("--html", "out/page.html", "--png", "out/figures", "--json")
    ended = report("kv.json", "memory.json", *options)
    files = json.loads(ended.stdout)["files"]
    assert sorted(map(Path, files)) == sorted(Path("out").rglob("*.*"))
    assert "out/figures/memory-memory.png" in files and "out/figures/kv-kept-kv.png" in files
    assert not any("-kept-" in name and "/kv-" not in name for name in files), "drawn once"
    for path in (folder / "out/figures").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG"), path
    assert "<h2>Verdicts</h2>" in (folder / "out/page.html").read_text()


def test_records_of_like_names_keep_all_figures(folder: Path) -> None:
    for name in ("a b.json", "a-b.json"):
        (folder / name).write_bytes((folder / "memory.json").read_bytes())
    assert report("a b.json", "a-b.json", "--png", "figures").code == 0
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"a-b-memory.png", "a-b-memory-again.png"} <= names


def test_only_figures_of_ours_are_replaced(folder: Path) -> None:
    options = ("kv.json", "--png", "figures")
    assert report(*options).code == 0
    (folder / "figures/holiday.png").write_bytes(b"\x89PNG of a beach")
    before = tree(folder)
    assert report(*options).code == 0, "figures of ours may be replaced"
    assert tree(folder) == before, "and what has another name stays"


@pytest.mark.parametrize("page", ["out/figures", "out", "out/figures/kv-kv-capacity.png"])
def test_a_page_in_the_place_of_figures_writes_neither(folder: Path, page: str) -> None:
    before = tree(folder)
    assert_refused(report("kv.json", "--png", "out/figures", "--html", page), f"--html {page}")
    assert tree(folder) == before


def test_without_matplotlib_tables_work_and_figures_say_what_to_install(folder: Path) -> None:
    assert "KV cache" in run_process("-c", HIDDEN, "report", "kv.json").stdout
    refused = run_process("-c", HIDDEN, "report", "kv.json", "--png", "figures")
    assert_refused(refused, "pip install 'grasp-deploy[plot]'")
