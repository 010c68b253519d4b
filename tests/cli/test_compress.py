"""`compress`: its JSON, the config that repeats a run, options, costs and text that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import INSPECTED, assert_refused, compress, document, grasp_deploy, tree

COMPRESSED = INSPECTED | {
    *("kept_cost", "budget", "total_cost", "kept_ffn_share", "kept_kv_share"),
    *("own_text_seconds", "start_seconds", "gate_learning_seconds", "scale_seconds"),
    "peak_memory_bytes",
}


def test_its_record(tiny_folder: Path, work: Path) -> None:
    ended = compress(tiny_folder, "--set", "scale-epochs=1", "--json")
    record = json.loads(ended.stdout)
    assert record.keys() >= COMPRESSED
    assert record["kept_cost"] <= record["budget"] <= 0.6 * record["total_cost"] * (1 + 1e-12)
    assert 0 < record["kept_ffn_share"] < 1
    assert record["start_seconds"] > 0 and record["scale_seconds"] > 0
    assert record["peak_memory_bytes"] > 2**20
    for stage in ("cutting in rounds", "calibrating scales", "writing tensors", "loss"):
        assert stage in ended.stderr
    inspected = document("inspect", work / "out", "--json")
    assert {key: record[key] for key in INSPECTED} == {key: inspected[key] for key in INSPECTED}


def test_the_config_that_a_run_writes_repeats_it(pruned: Path, work: Path) -> None:
    config = ("--config", pruned / "compress_config.json")
    document("compress", "-o", "again", *config, "--json")
    weights = "model.safetensors"
    assert (work / "again" / weights).read_bytes() == (pruned / weights).read_bytes()
    # What is given on the command line wins, and one kind of budget replaces the other.
    record = document("compress", "-o", "other", *config, "--weights", "500KiB", "--json")
    assert 0.8 * 500 * 2**10 < record["weight_bytes"] <= 500 * 2**10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--keep=60", "--calibration-sequences=0"),
            ("--keep 60", "0.6 for 60 %", "sequences 0"),
        ),
        (("--tensor-parallel", "4"), ("--tensor-parallel 4", "choose a multiple that divides 2")),
        (("--cost", "kv-bytes", "--ffn-multiple", "36"), ("FFN", "a multiple that divides 96")),
        (("--shard-size", "big"), ("--shard-size 'big'", "not a size", "GiB")),
        (("--set", "attention=psychic"), ("psychic", "sdpa")),
        (("--cost", "costs:broken"), ("RuntimeError: first line second line", "units, shape")),
        (("--config", "types.json"), ("--seed 1.5 is not allowed", "give a whole number")),
        (("--cost", ""), ("--cost", "choose parameters")),
        (("--cost=latency", "--batch=8", "--context=3"), ("--context 3 is too short",)),
        (("--calibration", "absent.txt"), ("absent.txt does not exist", "wikitext2", "a file")),
        (("--calibration", "short.txt"), ("short.txt", "too short", "more text")),
        (("--calibration=self=0", "--set=own-temperature=2"), ("own-temperature=2", "no effect")),
        (("--sequence-length", "513"), ("513", "512", "--sequence-length")),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else None,
)
def test_what_it_refuses(
    tiny_folder: Path,
    work: Path,
    options: tuple[str, ...],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for name, content in {
        "costs.py": 'def broken(units, shape): raise RuntimeError("first line\\nsecond line")',
        "types.json": '{"seed": 1.5}',
        "short.txt": "word " * 2,
    }.items():
        (work / name).write_text(content)
    before = tree(work)
    assert_refused(compress(tiny_folder, *options), *words)
    assert {
        name: hash_ for name, hash_ in tree(work).items() if "__pycache__" not in name
    } == before


def test_what_needs_no_model_is_refused_before_one_is_fetched(work: Path) -> None:
    wrong = compress("no-one/nothing", "--calibration", "lower.txt=-1")
    assert_refused(wrong, "positive weight")
    assert_refused(grasp_deploy("compress", "-o", "out", "--keep", "0.6"), "names no model")
