"""Models, devices and a hub that cannot be used: one line, exit code 2, nothing written."""

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
INDEX = "model.safetensors.index.json"
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def model(tiny_folder: Path, work: Path) -> Path:
    """A copy of a sound model, to damage."""
    return Path(shutil.copytree(tiny_folder, work / "model"))


@pytest.fixture
def sharded(work: Path) -> Path:
    tiny_model("llama").save_pretrained(work / "model", max_shard_size="60KB")
    tiny_tokenizer().save_pretrained(work / "model")
    return work / "model"


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def compress(model: Path | str, *options: str) -> Ended:
    text = ("--calibration", "text.txt")
    return grasp_deploy("compress", model, "-o", "out", *text, *SHORT, "--keep", "0.6", *options)


def assert_leaves_nothing(model: Path, *words: str, options: tuple[str, ...] = ()) -> None:
    before = tree(model.parent)
    assert_refused(compress(model, *options), *words)
    assert tree(model.parent) == before


@pytest.mark.parametrize("weights", ["present", "absent"])
def test_an_unsupported_architecture_is_named_before_weights_are_looked_at(
    model: Path, weights: str
) -> None:
    edit_json(model / "config.json", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    if weights == "absent":
        (model / WEIGHTS).unlink()
    supported = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    assert_leaves_nothing(model, "GPT2LMHeadModel", "not supported", *supported)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes"])
def test_a_quantised_model(model: Path, method: str) -> None:
    edit_json(model / "config.json", quantization_config={"quant_method": method})
    assert_leaves_nothing(model, f"quantised ({method})", "compress the unquantised model")


def test_a_quantised_model_that_does_not_say_how(model: Path) -> None:
    edit_json(model / "config.json", quantization_config="fp8")
    assert_leaves_nothing(model, "quantised (an unnamed method)", "compress the unquantised model")


def test_a_ministral(model: Path) -> None:
    kinds = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    edit_json(model / "config.json", **kinds, layer_types=["sliding_attention"] * 3)
    assert_leaves_nothing(model, "the architecture Ministral", "not supported")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, ("the activation gelu", "silu alone")),
        ({"layer_types": ["sliding_attention"] * 3}, ("a Llama whose config.json has sliding",)),
        ({"max_position_embeddings": "512"}, ("config.json cannot be read", "'512'")),
        ({"rope_scaling": [1]}, ("config.json cannot be read",)),
    ],
)
def test_what_would_break_behind_the_work(
    model: Path, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    edit_json(model / "config.json", **changes)
    assert_leaves_nothing(model, *words)


def test_a_home_that_is_not_there(work: Path) -> None:
    for command in (("inspect",), ("evaluate", "perplexity", "--data", "text.txt")):
        refused = grasp_deploy(*command, "~nobody-of-this-name/model")
        assert_refused(refused, "no such folder: ~nobody-of-this-name/model")


def test_weights_that_are_only_pickled(model: Path) -> None:
    (model / WEIGHTS).rename(model / "pytorch_model.bin")
    assert_leaves_nothing(model, "only as pickle", "pytorch_model.bin", "save_pretrained")


def test_no_weights_at_all(model: Path) -> None:
    (model / WEIGHTS).unlink()
    assert_leaves_nothing(model, "holds no weights", "fetch the model again")


@pytest.mark.parametrize("kept", [0, 1000, -1])
def test_a_truncated_file(model: Path, kept: int) -> None:
    (model / WEIGHTS).write_bytes((model / WEIGHTS).read_bytes()[:kept])
    assert_leaves_nothing(model, f"{WEIGHTS} is cut short or damaged", "fetch the file again")


def test_a_truncated_shard(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[3]
    path.write_bytes(path.read_bytes()[:-1])
    assert_leaves_nothing(sharded, f"{path.name} is cut short or damaged", "fetch the file again")


def test_a_corrupt_shard(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[1]
    content = bytearray(path.read_bytes())
    content[10] ^= 0xFF
    path.write_bytes(content)
    assert_leaves_nothing(sharded, f"{path.name} is cut short or damaged", "fetch the file again")


def test_a_missing_shard(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[2]
    path.unlink()
    assert_leaves_nothing(sharded, f"{INDEX} names {path.name}", "no such file", "fetch")


@pytest.mark.parametrize("content", ["[", '{"weight_map": ' + "1" * 5_000 + "}"])
def test_an_index_that_cannot_be_read(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    assert_leaves_nothing(sharded, f"{INDEX} cannot be read", "fetch the model again")


def test_an_index_without_metadata(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert_leaves_nothing(sharded, f'{INDEX} has no "metadata"', "transformers", "fetch")


def test_an_index_that_names_an_absent_file(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    weight_map["model.norm.weight"] = "model-00099.safetensors"
    edit_json(sharded / INDEX, weight_map=weight_map)
    assert_leaves_nothing(sharded, f"{INDEX} names model-00099.safetensors", "fetch")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"intermediate_size": 95}, ("gate_proj", "(96, 64)", "(95, 64) by config.json")),
        ({"vocab_size": 300}, ("embed_tokens", "(256, 64)", "(300, 64) by config.json")),
        ({"num_hidden_layers": 4}, ("lacks model.layers.3.", "config.json asks for")),
        ({"num_hidden_layers": 2}, ("holds model.layers.2.", "config.json does not know")),
        ({"attention_bias": True}, ("lacks", "q_proj.bias", "config.json asks for")),
        ({"num_key_value_heads": 3}, ("4 query heads for 3 KV heads", "damaged")),
        ({"hidden_size": None}, ("config.json gives hidden_size as None", "positive integer")),
        ({"num_key_value_heads": "2"}, ("gives num_key_value_heads as '2'", "positive integer")),
        ({"head_dim": "16"}, ("gives head_dim as '16'", "positive integer")),
        ({"per_layer_config": [1]}, ("per_layer_config", "something else than the sizes")),
        ({"per_layer_config": {"0": 3}}, ("per_layer_config", "something else than the sizes")),
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
        {"architectures": {"a": 1}},
        {"num_hidden_layers": 10**30},
        {"num_hidden_layers": 10**6},
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
    """It is no mistake, and no reason to fail."""
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


@pytest.mark.parametrize("content", [None, "", "{", "[]", "\x80"])
def test_a_broken_config(model: Path, content: str | None) -> None:
    (model / "config.json").unlink()
    if content is not None:
        (model / "config.json").write_text(content, encoding="latin-1")
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


@pytest.mark.parametrize("device", ["tpu", "mps", "cuda:97", ""])
def test_unknown_devices(model: Path, device: str) -> None:
    options = ("--device", device)
    assert_leaves_nothing(model, f"--device {device}", "cpu", options=options)


def test_a_loss_that_is_no_number(model: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    tensors["model.layers.1.mlp.up_proj.weight"][3] = float("nan")
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    words = (
        "loss on held-out blocks is nan",
        "weights are damaged",
        "--dtype float32",
    )
    assert_leaves_nothing(model, *words)
    data = ("--data", "text.txt", "--sequence-length", "16", "--sequences", "2")
    measured = grasp_deploy("evaluate", "perplexity", model, *data, "--json")
    assert_refused(measured, "the loss is nan", "weights are broken", "--dtype float32")


HUB = """
import sys, time
import datasets, torch, transformers
from tests.cli.command import SHORT, assert_refused, grasp_deploy

def refused(model, text, *words):
    start = time.monotonic()
    options = ("-o", "out", "--calibration", text, *SHORT, "--keep", "0.6")
    ended = grasp_deploy("compress", model, *options)
    assert_refused(ended, *words)
    assert time.monotonic() - start < 30, time.monotonic() - start

refused("some/model", "text.txt", "some/model", "hub cannot be reached", "network", "name a folder")
refused(sys.argv[1], "wikitext2", "wikitext2", "unreachable", "pass a local file instead")
"""


def test_an_unreachable_hub_is_told_quickly(tiny_folder: Path, work: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free again when the block ends: nobody answers there
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
