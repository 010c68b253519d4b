"""Models and devices that `compress` cannot use: one line, nothing written."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.command import (
    assert_nothing_changes,
    assert_refused,
    compress,
    edit_json,
    grasp_deploy,
)
from tests.tiny import tiny_model, tiny_tokenizer

WEIGHTS = "model.safetensors"
AGAIN = "fetch the model again"


@pytest.fixture
def model(tiny_folder: Path, work: Path) -> Path:
    """A copy of a sound model, to damage."""
    return Path(shutil.copytree(tiny_folder, work / "model"))


SLIDING = {"layer_types": ["sliding_attention"] * 3}
MINISTRAL = {**SLIDING, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, ("quantised", "its tensors are plain")),
        ({"hidden_act": "gelu"}, ("the activation gelu", "silu alone")),
        (SLIDING, ("a Llama whose config.json has sliding",)),
        (MINISTRAL, ("the architecture Ministral", "not supported")),
        ({"num_key_value_heads": 3}, ("4 query heads for 3 KV heads", "damaged", AGAIN)),
        ({"hidden_size": None}, ("does not fit (hidden_size", "it is None", AGAIN)),
        ({"per_layer_config": {"0": 3}}, ("does not fit (per_layer_config", AGAIN)),
        ({"eos_token_id": "x"}, ("eos_token_id",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_configs(model: Path, changes: dict[str, object], words: tuple[str, ...]) -> None:
    edit_json(model / "config.json", **changes)
    assert_nothing_changes(model, *words)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", None, ("config.json", "model")),
        ("tokenizer.json", b"{", ("the tokenizer of", "cannot be loaded", "add the tokenizer")),
    ],
)
def test_files(model: Path, file: str, content: bytes | None, words: tuple[str, ...]) -> None:
    (model / file).unlink() if content is None else (model / file).write_bytes(content)
    assert_nothing_changes(model, *words)


def test_a_config_that_asks_for_plain_tuples(model: Path, work: Path) -> None:
    """`return_dict: false` is valid, and the model works like any other."""
    edit_json(model / "config.json", return_dict=False)
    assert compress(model, "--set", "scale-epochs=1").code == 0
    assert grasp_deploy("verify", work / "out").code == 0


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


def test_a_tokenizer_that_panics(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit_json(
        model / "tokenizer.json",
        normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"},
    )
    assert_nothing_changes(model, "the tokenizer of", "index out of bounds", "add the tokenizer")
    assert capfd.readouterr().err == "", "Rust prints panics by itself"


def test_a_tokenizer_of_another_model(work: Path) -> None:
    tiny_model("llama", vocab_size=100).save_pretrained(work / "model")
    tiny_tokenizer().save_pretrained(work / "model")
    words = ("the tokenizer gave token 120", "only 100", "tokenizer that belongs to the model")
    assert_nothing_changes(work / "model", *words)


def test_what_is_no_dense_model(pruned: Path) -> None:
    assert_nothing_changes(pruned, "already pruned", "smaller budget", "the model that it")
    for name in ("./nowhere", "text.txt"):
        assert_nothing_changes(name, name, "folder", "hub id")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("tpu", ("--device tpu", "cpu")),
        pytest.param(
            "cuda",
            ("--device cuda", "0 GPUs", "--device cpu"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_devices(tiny_folder: Path, work: Path, device: str, words: tuple[str, ...]) -> None:
    assert_nothing_changes(tiny_folder, *words, options=("--device", device))


def test_a_loss_that_is_not_a_number(model: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    tensors["model.layers.1.mlp.up_proj.weight"][3] = float("nan")
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    words = ("up_proj.weight of", "numbers that are not finite", "--dtype float32")
    assert_nothing_changes(model, *words)
    data = ("--data", "text.txt", "--sequence-length", "16", "--sequences", "2")
    measured = grasp_deploy("evaluate", "compare", model, *data, "--json")
    assert_refused(measured, "the loss is nan", "weights are broken", "--dtype float32")
