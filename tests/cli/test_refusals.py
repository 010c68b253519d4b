"""Every refusal: exit code 2, one line that names the culprit, and no file changed."""

import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from grasp_deploy.files.outputs import PLAN_FILE
from grasp_deploy.files.record import check_place, write_record
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.bench.records import kv_record, memory_record, model, record, throughput_record
from tests.cli.command import assert_refused, edit_json, grasp_deploy, tree
from tests.cli.conftest import TEXT
from tests.cli.refusals import CASES
from tests.installed import pretend
from tests.tiny import save_tiny

CONTENTS = {
    "text.txt": TEXT,
    "short.txt": "word " * 2,
    "rows.jsonl": '{"id": 7, "label": "x\\u001b", "story": "Once"}\n',
    "types.json": '{"seed": 1.5}',
    "text.json": '{"keep": "0.6"}',
    "foreign.json": '{"model": "m", "keeep": 1}',
    "odd.json": "{",
    "costs.py": 'def broken(units, shape): raise RuntimeError("first line\\nsecond line")',
    "notes.html": "mine",
    "cut.json": "{",
    "plain.json": '{"a": 1}',
    "later.json": '{"schema_version": 9, "benchmark": "kv"}',
    "bare.json": '{"schema_version": 1, "benchmark": "kv"}',
    "drawn/kv-kv-capacity.png": "a cat",
    "web/manifest.json": '{"name": "a page"}',
    "mine.partial/thesis.txt": "three years of work",
    ".file.lock": "three years of work",
    ".begun.incomplete": "three years of work",
    ".folder.incomplete/thesis/one": "three years of work",
}


@pytest.fixture(scope="module")
def world(
    tiny_folder: Path, pruned_once: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder that no command may change: models, texts, records, and things in the way."""
    folder = tmp_path_factory.mktemp("world")
    for name, text in CONTENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copytree(tiny_folder, folder / "model")
    for name in ("pruned", "noted", "copy.partial"):
        shutil.copytree(pruned_once, folder / name)
    (folder / "noted/notes.txt").write_text("mine")
    shutil.copytree(tiny_folder, folder / "adapter")
    (folder / "adapter/adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_tiny("llama", folder / "same-shape", seed=1)
    save_tiny("llama", folder / "other-shape", num_hidden_layers=2)
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    for name, target in {"link": "pruned", ".other.lock": "text.txt", "circle": "circle"}.items():
        (folder / name).symlink_to(target)
    (folder / "odd-positions.json").write_bytes((tiny_folder / "config.json").read_bytes())
    edit_json(folder / "odd-positions.json", max_position_embeddings="2048")
    write_plans(folder)
    write_records(folder)
    with (folder / ".busy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def write_plans(folder: Path) -> None:
    """Plans that lack a unit, are of a later release, or broke their budget."""
    tensors, plan = read_tensors(folder / "pruned" / PLAN_FILE)
    over = {**plan, "budget": {**plan["budget"], "limit": 1.0}}
    short = {**tensors, "mask": tensors["mask"][1:]}
    for name, (vectors, stated) in {
        "short": (short, plan),
        "new": (tensors, {**plan, "version": 99}),
        "over": (tensors, over),
    }.items():
        write_tensors(folder / f"{name}.safetensors", vectors, stated)


def write_records(folder: Path) -> None:
    """A record of a bench and one of a study; two that are no records."""
    models = [model("dense")]
    write_record(folder / "kv.json", kv_record(models))
    write_record(folder / "study.json", record("study", []))
    mixed = {**throughput_record(models), "cells": memory_record(models)["cells"]}
    (folder / "mixed.json").write_text(json.dumps(mixed))
    (folder / "bytes.json").write_bytes(b"\xff")


@pytest.mark.parametrize(("line", "culprit"), CASES)
def test_one_line_names_the_culprit_and_nothing_changes(
    line: str, culprit: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    before = tree(world)
    assert_refused(grasp_deploy(*shlex.split(line)), *culprit.split(" & "))
    assert tree(world) == before


def test_a_record_of_the_same_kind_may_be_replaced(world: Path) -> None:
    check_place(world / "kv.json", "kv")
