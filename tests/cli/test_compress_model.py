"""Models, devices and a hub that `compress` cannot use: one line, nothing written."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.command import SHORT, Ended, assert_refused, environment, grasp_deploy, tree
from tests.tiny import tiny_model, tiny_tokenizer

WEIGHTS = "model.safetensors"
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def model(tiny_folder: Path, work: Path) -> Path:
    """A copy of a sound model, to damage."""
    return Path(shutil.copytree(tiny_folder, work / "model"))


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def compress(model: Path | str, *options: str) -> Ended:
    text = ("--calibration", "text.txt")
    return grasp_deploy("compress", model, "-o", "out", *text, *SHORT, "--keep", "0.6", *options)


def assert_leaves_nothing(model: Path, *words: str, options: tuple[str, ...] = ()) -> None:
    before = tree(model.parent)
    assert_refused(compress(model, *options), *words)
    assert tree(model.parent) == before


def test_a_quantised_model(model: Path) -> None:
    edit_json(model / "config.json", quantization_config={"quant_method": "fp8"})
    assert_leaves_nothing(model, "quantised", "compress the unquantised model")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, ("the activation gelu", "silu alone")),
        ({"layer_types": ["sliding_attention"] * 3}, ("a Llama whose config.json has sliding",)),
        (
            {
                "model_type": "mistral",
                "architectures": ["MistralForCausalLM"],
                "layer_types": ["sliding_attention"] * 3,
            },
            ("the architecture Ministral", "not supported"),
        ),
        ({"max_position_embeddings": "512"}, ("config.json cannot be read", "'512'")),
    ],
)
def test_configs_that_would_fail_after_the_work(
    model: Path, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    edit_json(model / "config.json", **changes)
    assert_leaves_nothing(model, *words)


@pytest.mark.parametrize("kept", [1000, -1])
def test_a_truncated_file(model: Path, kept: int) -> None:
    (model / WEIGHTS).write_bytes((model / WEIGHTS).read_bytes()[:kept])
    assert_leaves_nothing(model, f"{WEIGHTS} is cut short or damaged", "fetch the file again")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 300}, ("embed_tokens", "(256, 64)", "(300, 64) by config.json")),
        ({"num_hidden_layers": 4}, ("lacks model.layers.3.", "config.json asks for")),
        ({"num_hidden_layers": 2}, ("holds model.layers.2.", "config.json does not know")),
        ({"attention_bias": True}, ("lacks", "q_proj.bias", "config.json asks for")),
        ({"num_key_value_heads": 3}, ("4 query heads for 3 KV heads", "damaged")),
        ({"hidden_size": None}, ("config.json does not fit (hidden_size", "it is None")),
        ({"head_dim": "16"}, ("config.json does not fit (head_dim", "it is '16'")),
        ({"per_layer_config": {"0": 3}}, ("config.json does not fit (per_layer_config",)),
    ],
)
def test_a_config_that_contradicts_the_tensors(
    model: Path, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    edit_json(model / "config.json", **changes)
    assert_leaves_nothing(model, *words, "fetch the model again")


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": None},
        {"eos_token_id": "x"},
    ],
)
def test_a_config_that_transformers_cannot_take(model: Path, changes: dict[str, object]) -> None:
    edit_json(model / "config.json", **changes)
    before = tree(model.parent)
    refused = compress(model)
    assert_refused(refused, *changes)
    assert any(words in refused.stderr for words in ("cannot be loaded", "fetch the model again"))
    assert tree(model.parent) == before


def test_a_config_that_asks_for_plain_tuples(model: Path, work: Path) -> None:
    """`return_dict: false` is valid, and the model works like any other."""
    edit_json(model / "config.json", return_dict=False)
    assert compress(model, "--set", "scale-epochs=1").code == 0
    assert grasp_deploy("verify", work / "out", "--engine", "transformers").code == 0


def test_code_in_a_model_folder_is_never_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = model.parent / "ran"
    (model / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass\n")
    auto = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    edit_json(model / "tokenizer_config.json", **auto)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert_refused(compress(model), "the tokenizer of", "cannot be loaded")
    assert not ran.exists()


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_broken_config(model: Path, content: str | None) -> None:
    (model / "config.json").unlink()
    if content is not None:
        (model / "config.json").write_text(content)
    assert_leaves_nothing(model, "config.json", "model")


@pytest.mark.parametrize("content", [None, "{"])
def test_a_missing_or_broken_tokenizer(model: Path, content: str | None) -> None:
    for path in model.glob("tokenizer*"):
        path.unlink()
    if content is not None:
        (model / "tokenizer.json").write_text(content)
    assert_leaves_nothing(model, "the tokenizer of", "cannot be loaded", "add the tokenizer files")


def test_a_tokenizer_of_another_model(work: Path) -> None:
    tiny_model("llama", vocab_size=100).save_pretrained(work / "model")
    tiny_tokenizer().save_pretrained(work / "model")
    words = ("the tokenizer gave token 122", "only 100", "tokenizer that belongs to the model")
    assert_leaves_nothing(work / "model", *words)


@pytest.mark.parametrize("name", ["./nowhere", "text.txt"])
def test_no_model_there(work: Path, name: str) -> None:
    assert_refused(compress(name), name, "folder", "hub id")
    assert list(work.iterdir()) == [work / "text.txt"]


def test_an_already_pruned_model(model: Path, work: Path) -> None:
    assert compress(model).code == 0
    (work / "out").rename(work / "pruned")
    assert_leaves_nothing(work / "pruned", "already pruned", "smaller budget", "the model that it")


@needs_no_gpu
def test_no_gpu(model: Path) -> None:
    options = ("--device", "cuda")
    assert_leaves_nothing(model, "--device cuda", "0 GPUs", "--device cpu", options=options)


@pytest.mark.parametrize("device", ["tpu", "cuda:97"])
def test_unknown_devices(model: Path, device: str) -> None:
    options = ("--device", device)
    assert_leaves_nothing(model, f"--device {device}", "cpu", options=options)


def test_a_loss_that_is_no_number(model: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    tensors["model.layers.1.mlp.up_proj.weight"][3] = float("nan")
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    words = (
        "loss on held-out sequences is nan",
        "weights are damaged",
        "--dtype float32",
    )
    assert_leaves_nothing(model, *words)
    data = ("--data", "text.txt", "--sequence-length", "16", "--sequences", "2")
    measured = grasp_deploy("evaluate", "perplexity", model, *data, "--json")
    assert_refused(measured, "the loss is nan", "weights are broken", "--dtype float32")


HUB = """
import sys
from tests.cli.command import SHORT, assert_refused, grasp_deploy

def refused(model, text, *words):
    options = ("-o", "out", "--calibration", text, *SHORT, "--keep", "0.6")
    ended = grasp_deploy("compress", model, *options)
    assert_refused(ended, *words)

refused("some/model", "text.txt", "some/model", "hub cannot be reached", "network", "name a folder")
refused(sys.argv[1], "wikitext2", "wikitext2", "unreachable", "pass a local file instead")
"""


@pytest.mark.slow
def test_an_unreachable_hub(tiny_folder: Path, work: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free when the block ends: nobody listens there
    variables = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(work / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", HUB, str(tiny_folder)],
        env=environment(**variables, NO_PROXY="*", HF_HUB_OFFLINE="0"),
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in work.iterdir()} <= {"text.txt", "hub"}
