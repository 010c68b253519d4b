"""Models and devices that `compress` cannot use: one line, nothing written."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.command import (
    SHORT,
    assert_nothing_changes,
    assert_refused,
    compress,
    edit_json,
    grasp_deploy,
)
from tests.tiny import tiny_model, tiny_tokenizer

WEIGHTS = "model.safetensors"


@pytest.fixture
def model(tiny_folder: Path, work: Path) -> Path:
    """A copy of a sound model, to damage."""
    return Path(shutil.copytree(tiny_folder, work / "model"))


def test_a_budget_that_free_units_meet(
    tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kept unit costs nothing, and the plan says so."""
    lines = (
        "import torch",
        "def free(u, shape): return (torch.arange(u.size) % 98 % 4 == 1) * 1.0",
    )
    (work / "free_costs.py").write_text("\n".join(lines))
    monkeypatch.delitem(sys.modules, "free_costs", raising=False)
    options = ("--cost", "free_costs:free", "--keep", "0.001", "--json")
    record = json.loads(compress(tiny_folder, *options).stdout)
    assert record["kept_cost"] == 0.0
    assert grasp_deploy("verify", work / "out").code == 0


def test_code_in_a_model_folder_is_never_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = model.parent / "ran"
    (model / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass\n")
    auto = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    edit_json(model / "tokenizer_config.json", **auto)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert_refused(compress(model), "the tokenizer of", "cannot be loaded")
    assert not ran.exists()


def test_a_tokenizer_of_another_model(work: Path) -> None:
    tiny_model("llama", vocab_size=100).save_pretrained(work / "model")
    tiny_tokenizer().save_pretrained(work / "model")
    words = ("the tokenizer gave token 120", "only 100", "tokenizer that belongs to the model")
    assert_nothing_changes(work / "model", *words)
    (work / "prompt.txt").write_text("fox")
    own = ("-o", "out", "--keep", "0.6", "--calibration", "self:prompt.txt", *SHORT)
    assert_refused(grasp_deploy("compress", "model", *own), *words)


def test_a_tokenizer_config_that_no_output_could_carry_over(model: Path) -> None:
    """Before any stage has run: transformers reads it, and a resumed run would end there too."""
    path = model / "tokenizer_config.json"
    path.write_text(path.read_text().replace("{", '{"model_max_length": Infinity,', 1))
    words = ("tokenizer_config.json cannot be read", "invalid character", "fetch the model again")
    assert_nothing_changes(model, *words)


def test_a_loss_that_is_not_a_number(model: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    tensors["model.layers.1.mlp.up_proj.weight"][3] = float("nan")
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    words = ("up_proj.weight of", "numbers that are not finite", "fetch the model again")
    assert_nothing_changes(model, *words)
    narrow = ("--dtype", "bfloat16")
    assert_nothing_changes(model, *words, "--dtype float32", options=narrow)
    data = ("--data", "text.txt", "--sequence-length", "16", "--sequences", "2")
    measured = grasp_deploy("evaluate", "compare", model, *data, "--json")
    assert_refused(measured, "model is nan after 1 of 2", "weights are broken", "--dtype float32")
