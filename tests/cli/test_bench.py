"""Every bench: where its record may be written, and what it refuses before it measures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grasp_deploy.files.record import check_place, write_record
from tests.bench.records import kv_record, model, record
from tests.cli.command import assert_refused, edit_json, grasp_deploy, tree

BENCHES = {
    "kv": ("bench", "kv"),
    "memory": ("bench", "memory"),
    "throughput": ("bench", "throughput"),
    "serve": ("bench", "serve"),
    "tasks": ("evaluate", "tasks", "--tasks", "piqa"),
}


@pytest.mark.parametrize("kind", BENCHES)
def test_only_a_record_of_the_same_kind_is_replaced(kind: str, work: Path) -> None:
    write_record(work / "study.json", record("study", []))
    os.mkfifo(work / "pipe")
    before = tree(work)
    for output, words in {
        "study.json": f"is a record of study, and not of {kind}: name another file",
        "text.txt": "exists and is not a record",
        "pipe": "is a pipe or a device",
    }.items():
        refused = grasp_deploy(*BENCHES[kind], "model", "--output", output)
        assert_refused(refused, f"--output {output} {words}")
    assert tree(work) == before
    write_record(work / "kv.json", kv_record([model("dense")]))
    check_place(work / "kv.json", "kv")
    check_place(work / "kv.json")  # a script that does not tell its kind


@pytest.mark.parametrize("bench", [("kv", "--predict-only"), ("memory",)])
def test_positions_that_are_not_a_number(
    tiny_folder: Path, work: Path, bench: tuple[str, ...]
) -> None:
    (work / "odd.json").write_text((tiny_folder / "config.json").read_text())
    edit_json(work / "odd.json", max_position_embeddings="2048")
    ended = grasp_deploy("bench", *bench, "odd.json", "--random-weights")
    assert_refused(ended, "does not fit (max_position_embeddings", "fetch the model")
