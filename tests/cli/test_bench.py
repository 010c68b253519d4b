"""Every bench: where its record may be written, and lists of numbers that it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from grasp_deploy.config.option import number_list
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import check_place, write_record
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


def test_numbers_too_large_to_mean_anything() -> None:
    with pytest.raises(InputError, match=r"--batch .* whole number from 1"):
        number_list(f"1,{'1' * 19}", "--batch")


@pytest.mark.parametrize("bench", [("kv", "--predict-only"), ("memory",)])
def test_positions_that_are_no_number(
    tiny_folder: Path, work: Path, bench: tuple[str, ...]
) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (work / "odd.json").write_text(json.dumps(config | {"max_position_embeddings": "2048"}))
    ended = grasp_deploy("bench", *bench, "odd.json", "--random-weights")
    assert_refused(ended, "max_position_embeddings", "is no positive whole number", "mend")


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "kv", "model", "--predict-only", "--output"),
        ("evaluate", "tasks", "model", "--output"),
        ("report", "kv.json", "--html"),
    ],
)
def test_a_pipe_is_never_replaced(command: tuple[str, ...], work: Path) -> None:
    os.mkfifo(work / "pipe")
    write_record(work / "kv.json", kv_record([model("dense")]))
    refused = grasp_deploy(*command, "pipe")
    assert_refused(refused, f"{command[-1]} pipe is a pipe or a device", "name a file")
