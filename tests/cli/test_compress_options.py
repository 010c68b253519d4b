"""Options, budgets, cost functions and config files that `compress` refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.budget_options import _as_option, _limit
from grasp_deploy.config.compress_config import CompressConfig
from tests.cli.command import SHORT, Ended, assert_refused, grasp_deploy, tree

COSTS = """
import torch
def short(units, shape): return torch.ones(3)
def negative(units, shape): return [-1.0 if i == 7 else 1.0 for i in range(units.size)]
def not_a_number(units, shape): return torch.full((units.size,), float("nan"))
def huge(units, shape): return torch.full((units.size,), 1e307, dtype=torch.float64)
def nothing(units, shape): return torch.zeros(units.size)
def absent(units, shape): return None
def broken(units, shape): raise RuntimeError("first line\\nsecond line")
"""


def compress(model: Path, *options: str | Path) -> Ended:
    text = ("--calibration", "text.txt", *SHORT)
    return grasp_deploy("compress", model, "-o", "out", *text, *options)


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
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else None,
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
        ("costs:short", ("shape (3,)", "one number for each of the 294 units")),
        ("costs:negative", ("-1.0 for unit 7", "not negative")),
        ("costs:not_a_number", ("nan for unit 0", "finite")),
        ("costs:huge", ("1e+307 for unit 0", "1e+100 at most")),
        ("costs:nothing", ("no unit costs anything", "nothing to prune")),
        ("costs:absent", ("failed with TypeError", "one number per unit")),
        ("costs:broken", ("RuntimeError: first line second line", "function(units, shape)")),
    ],
)
def test_cost_functions(tiny_folder: Path, work: Path, cost: str, words: tuple[str, ...]) -> None:
    (work / "costs.py").write_text(COSTS)
    assert_refused(compress(tiny_folder, "--keep", "0.6", "--cost", cost), *words)
    assert {path.name for path in work.iterdir()} <= {"text.txt", "costs.py", "__pycache__"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("there is no file options.json", "compress_config.json")),
        ("{", ("options.json cannot be read", "line 1", "compress_config.json")),
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
