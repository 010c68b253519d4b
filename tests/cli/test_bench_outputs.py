"""Where a bench may write its record: what lies there already is told before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from grasp_deploy.cli.bench.output import check_place
from grasp_deploy.files.record import write_record
from tests.bench.records import kv_record, memory_record, model, record
from tests.cli.command import assert_refused, grasp_deploy, tree

BENCHES = {
    "kv": ("bench", "kv"),
    "memory": ("bench", "memory"),
    "throughput": ("bench", "throughput"),
    "serve": ("bench", "serve"),
    "tasks": ("evaluate", "tasks"),
}


@pytest.mark.parametrize("kind", BENCHES)
def test_a_record_of_another_kind_stays(kind: str, work: Path) -> None:
    write_record(work / "study.json", record("study", []))
    before = tree(work)
    ended = grasp_deploy(*BENCHES[kind], "model", "--output", "study.json")
    words = (f"is a record of study, and not of {kind}", "name another file")
    assert_refused(ended, "--output study.json", *words)
    assert tree(work) == before


def test_a_record_of_the_same_kind_may_be_replaced(work: Path) -> None:
    write_record(work / "kv.json", kv_record([model("dense")]))
    write_record(work / "memory.json", memory_record([model("dense")]))
    check_place(work / "kv.json", "kv")
    check_place(work / "memory.json")  # a script that does not tell its kind
