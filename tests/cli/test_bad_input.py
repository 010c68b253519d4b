"""Options, budgets, cost functions and calibration text that cannot work: one line, exit code 2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.compression.budget import _as_option, _limit
from grasp_deploy.config.compress_config import CompressConfig
from tests.cli.command import SHORT, Ended, assert_refused, grasp_deploy, run_process, tree

COSTS = """
import torch
def short(units, shape): return torch.ones(3)
def table(units, shape): return torch.ones(units.size, 2)
def negative(units, shape): return [-1.0 if i == 7 else 1.0 for i in range(units.size)]
def not_a_number(units, shape): return torch.full((units.size,), float("nan"))
def infinite(units, shape): return torch.full((units.size,), float("inf"))
def huge(units, shape): return torch.full((units.size,), 1e307, dtype=torch.float64)
def nothing(units, shape): return torch.zeros(units.size)
def absent(units, shape): return None
def broken(units, shape): raise RuntimeError("first line\\nsecond line")
number = 3

def leaves(units, shape):
    raise SystemExit(0)
"""


def compress(model: Path, *options: str | Path) -> Ended:
    return grasp_deploy(
        "compress", model, "-o", "out", "--calibration", "text.txt", *SHORT, *options
    )


def assert_leaves_nothing(model: Path, work: Path, options: tuple[str, ...], *words: str) -> None:
    before = tree(work), tree(model)
    assert_refused(compress(model, *options), *words)
    assert (tree(work), tree(model)) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--keep", "nan"), ("--keep nan ", "above 0 and at most 1")),
        (("--keep", "60"), ("--keep 60 ", "at most 1", "write 0.6")),
        (("--weights", "1GiB"), ("--weights 1GiB", "more than the dense", "633.75 KiB")),
        (("--kv-per-token", "1MiB"), ("--kv-per-token 1MiB", "more than the dense", "1.50 KiB")),
        (("--keep", "0.6", "--ffn-multiple", "97"), ("96 FFN channels", "97", "at most 96")),
        (("--keep", "0.6", "--kv-multiple", "3"), ("2 KV groups", "3", "at most 2")),
        (("--keep", "0.6", "--tensor-parallel", "4"), ("--tensor-parallel 4", "at most 2")),
        (("--keep", "0.6", "--cost", "kv-bytes", "--ffn-multiple", "36"), ("FFN", "drop the")),
        (("--keep", "0.6", "--shard-size", "big"), ("--shard-size 'big'", "not a size", "GiB")),
        (("--keep", "0.6", "--revision", "main"), ("is a folder", "leave --revision out")),
        (("--keep", "0.6", "--set", "attention=psychic"), ("psychic", "sdpa")),
        (("--keep", "0.6", "--set", "epoch=4"), ("--set epoch=4", "did you mean epochs?")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_options(
    tiny_folder: Path, work: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_leaves_nothing(tiny_folder, work, options, *words)


def test_all_mistakes_are_told_together(tiny_folder: Path, work: Path) -> None:
    options = ("--keep", "60", "--set", "epochs=0", "--set", "ranking=luck", "--sequences", "0")
    words = ("--keep 60", "--set epochs=0", "--set ranking='luck'", "score-per-cost", "--sequences")
    assert_leaves_nothing(tiny_folder, work, options, *words)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (("--keep", "0.001"), r"--keep [\d.]+"),
        (("--keep", "0.01", "--cost", "kv-bytes"), r"--keep [\d.]+"),
        (("--keep", "0.01", "--ffn-multiple", "32", "--kv-multiple", "2"), r"--keep [\d.]+"),
        (("--weights", "1KiB"), r"--weights \d+"),
        (("--kv-per-token", "1"), r"--kv-per-token \d+"),
    ],
)
def test_a_budget_under_the_floor_names_the_smallest_that_works(
    tiny_folder: Path, work: Path, kind: tuple[str, ...], option: str
) -> None:
    refused = compress(tiny_folder, *kind)
    assert_refused(refused, "under the floor", "the smallest possible is " + kind[0])
    assert list(work.iterdir()) == [work / "text.txt"]
    smallest = re.findall(option, refused.stderr)[-1].split()
    made = compress(tiny_folder, *smallest, *kind[2:], "--json")
    assert made.code == 0, made.stderr
    record = json.loads(made.stdout)
    assert record["kept_cost"] <= record["budget"]
    # One step less is too little.
    name, value = smallest
    less = f"{float(value) - 1e-4:.4f}" if name == "--keep" else str(int(value) - 1)
    assert_refused(compress(tiny_folder, name, less, *kind[2:], "-o", "other"), "under the floor")


@given(limit=st.integers(1, 10**6), total=st.integers(1, 10**6))
def test_the_smallest_keep_is_enough_however_floats_round(limit: int, total: int) -> None:
    limit, total = sorted((limit, total))
    shape = model_shape(
        {"model_type": "llama", "num_attention_heads": 1, "intermediate_size": 1}
        | {"hidden_size": 1, "vocab_size": 1, "num_hidden_layers": 1}
    )
    asked = CompressConfig(model="m", keep=0.5)
    named = float(_as_option(asked, shape, total, limit).removeprefix("--keep "))
    assert _limit(CompressConfig(model="m", keep=named), shape, total) >= limit


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ("flops", ("--cost flops", "unknown", "kv-bytes", "package.module:function")),
        ("nowhere.costs:f", ("nowhere.costs:f", "cannot be imported", "importable from here")),
        ("costs:f", ("costs:f", "cannot be imported", "has no attribute 'f'")),
        ("costs:", ("cannot be imported",)),
        ("costs:short", ("shape (3,)", "one number for each of the 294 units")),
        ("costs:table", ("shape (294, 2)", "one number for each of the 294 units")),
        ("costs:negative", ("-1.0 for unit 7", "not negative")),
        ("costs:not_a_number", ("nan for unit 0", "finite")),
        ("costs:infinite", ("inf for unit 0", "finite")),
        ("costs:huge", ("sum to", "1e100")),
        ("costs:nothing", ("no unit costs anything", "nothing to prune")),
        ("costs:leaves", ("failed with SystemExit", "function(units, shape)")),
        ("costs:absent", ("failed with TypeError", "one number per unit")),
        ("costs:broken", ("RuntimeError: first line second line", "function(units, shape)")),
        ("costs:number", ("failed with TypeError", "function(units, shape)")),
    ],
)
def test_cost_functions(tiny_folder: Path, work: Path, cost: str, words: tuple[str, ...]) -> None:
    (work / "costs.py").write_text(COSTS)
    (work / "__pycache__").mkdir(exist_ok=True)
    before = {name for name in tree(work) if "__pycache__" not in name}
    assert_refused(compress(tiny_folder, "--keep", "0.6", "--cost", cost), *words)
    assert {name for name in tree(work) if "__pycache__" not in name} == before


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("absent.txt", None, (), ("absent.txt does not exist", "wikitext2", "a file")),
        ("empty.txt", b"", (), ("empty.txt is empty", "give a file")),
        ("blank.txt", b" \n\n", (), ("blank.txt is empty", "another file")),
        ("short.txt", b"word " * 10, (), ("too short", "--sequences 3 at most", "more text")),
        ("binary.txt", b"\x80\x02abc", (), ("not text", "byte 0", "UTF-8")),
        ("nul.txt", b"ab\0cd", (), ("not text", "NUL")),
        ("bad.jsonl", b'{"text": 1', (), ("bad.jsonl", "line 1", "mend")),
        ("rows.jsonl", b'{"body": 1}\n', (), ("rows.jsonl", "no column 'text'", "body")),
        ("number.jsonl", b'{"text": 1}\n', (), ("must hold strings", "row 0")),
        (
            *("some.jsonl", b'{"text": "a"}\n', ("--calibration-column", "body")),
            ("no column 'body'", "text", "--calibration-column"),
        ),
        ("bad.csv", b'a,b\n"1', (), ("bad.csv", "CSV", "quote")),
        ("bad.parquet", b"PAR1", (), ("bad.parquet", "not a readable Parquet file")),
        (
            "good.txt",
            b"word " * 99,
            ("--calibration-split", "train[:9]"),
            ("one document", ".jsonl"),
        ),
        ("good.txt", b"word " * 99, ("--calibration-split", "validation"), ("no split",)),
        ("good.txt", b"word " * 999, ("--sequence-length", "513"), ("513", "512", "--sequence-l")),
    ],
)
def test_calibration_text(
    tiny_folder: Path,
    work: Path,
    name: str,
    content: bytes | None,
    options: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    if content is not None:
        (work / name).write_bytes(content)
    given = ("--keep", "0.6", "--calibration", name, *options)
    assert_leaves_nothing(tiny_folder, work, given, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("there is no file options.json", "compress_config.json")),
        ("{", ("options.json cannot be read", "line 1", "compress_config.json")),
        ("\x80", ("options.json cannot be read", "compress_config.json")),
        ("[1]", ("options.json is not a JSON object", "compress_config.json")),
        (
            '{"keeep": 0.5, "speed": 1}',
            ("options.json", "unknown keys keeep, speed", "known", "keep"),
        ),
        (
            '{"keep": "0.6", "seed": 1.5}',
            ("--keep '0.6' is not a number", "--seed 1.5 is not a whole"),
        ),
        (
            '{"keep": 60, "sequences": true}',
            ("write 0.6", "--sequences True is not a whole number"),
        ),
    ],
)
def test_config_files(
    tiny_folder: Path, work: Path, content: str | None, words: tuple[str, ...]
) -> None:
    if content is not None:
        (work / "options.json").write_text(content, encoding="latin-1")
    before = tree(work)
    config_file = ("--config", "options.json")
    assert_refused(grasp_deploy("compress", tiny_folder, "-o", "out", *config_file), *words)
    assert tree(work) == before


def test_no_model_is_named(work: Path) -> None:
    assert_refused(
        grasp_deploy("compress", "-o", "out", "--keep", "0.6"), "names no model", "MODEL"
    )


@pytest.mark.parametrize("command", ["compress", "up"])
def test_an_unknown_option_is_named(tiny_folder: Path, work: Path, command: str) -> None:
    ended = grasp_deploy(command, tiny_folder, "-o", "out", "--keep", "0.6", "--keeep", "0.5")
    assert ended.code == 2
    assert ended.stdout == ""
    assert "No such option: --keeep" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(work.iterdir()) == [work / "text.txt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "MODEL", "--keep", "60"), ("write 0.6",)),
        (("evaluate", "perplexity", "MODEL", "--data", "no.txt"), ("no.txt does not exist",)),
        (("evaluate", "perplexity", "MODEL", "--data", "text.txt"), ("too short", "--sequences 8")),
        (("inspect", "MODEL", "--memory", "lots"), ("--memory 'lots'", "not a size", "9GiB")),
        (("inspect", "./nowhere"), ("no such folder: ./nowhere", "hub id")),
        (("verify", "MODEL"), ("no pruned checkpoint", "that compress made")),
        (("verify", "nowhere"), ("no pruned checkpoint", "that compress made")),
        (("verify", "MODEL", "--engine", "onnx"), ("--engine onnx", "transformers or vllm")),
    ],
)
def test_other_commands(
    tiny_folder: Path, work: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = tree(work)
    named = [tiny_folder if argument == "MODEL" else argument for argument in arguments]
    assert_refused(grasp_deploy(*named), *words)
    assert tree(work) == before


def test_a_process_of_its_own_ends_the_same_way(tiny_folder: Path, work: Path) -> None:
    options = ("--calibration", "text.txt", *SHORT, "--keep", "0.001")
    before = tree(work)
    ended = run_process("compress", tiny_folder, "-o", "out", *options)
    assert_refused(ended, "under the floor", "the smallest possible is --keep")
    assert tree(work) == before
    assert read_config(tiny_folder)  # the model is as it was
