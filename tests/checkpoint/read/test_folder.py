"""One model, whoever reads the folder: kinds of folders, each refused in a line or read as one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.read.loading import class_config, load, with_weights
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.checkpoint.read.validate import read_folder, read_stored_model
from grasp_deploy.errors import InputError
from tests.cli.command import edit_json
from tests.quantised import quantise
from tests.tiny import random_kept, save_tiny, slice_by_hand

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
NORM, HEAD = "model.norm.weight", "lm_head.weight"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model in one file, one in several, one with tied embeddings, and a pruned one."""
    folder = tmp_path_factory.mktemp("saved")
    dense = save_tiny("llama", folder / "dense")
    dense.save_pretrained(folder / "sharded", max_shard_size="30KB")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(folder / "pruned")
    save_tiny("llama", folder / "tied", tie_word_embeddings=True)
    return folder


def write(name: str, content: object = "") -> Change:
    """Add a file: JSON, or bytes that nobody can read."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        data = json.dumps(content).encode() if content != "" else b"\x80 neither text nor tensors"
        (folder / name).write_bytes(data)

    return change


def config(**changes: object) -> Change:
    return lambda folder: edit_json(folder / "config.json", **changes)


def stray(name: str, tensor: str = NORM) -> Change:
    """Add a weight file with one tensor, which would spoil the model."""
    return lambda folder: save_file({tensor: torch.zeros(64)}, folder / name)


def index_of(change: Callable[[dict[str, str]], object]) -> Change:
    """Change where an index puts the tensors."""

    def edited(folder: Path) -> None:
        weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
        change(weight_map)
        edit_json(folder / INDEX, weight_map=weight_map)

    return edited


def shuffle(weight_map: dict[str, str]) -> None:
    weight_map[NORM], weight_map[HEAD] = weight_map[HEAD], weight_map[NORM]


def in_two_shards(folder: Path) -> None:
    first = sorted(folder.glob("*.safetensors"))[0]
    save_file({**load_file(first), NORM: torch.zeros(64)}, first, {"format": "pt"})


def own_head(folder: Path, difference: float = 1.0) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[HEAD] = tensors["model.embed_tokens.weight"].clone()
    tensors[HEAD][-1, -1] += difference
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def other_layers(folder: Path) -> None:
    layers = json.loads((folder / "config.json").read_text())["per_layer_config"]
    config(per_layer_config={**layers, "1": {**layers["1"], "rope_theta": 2.0}})(folder)


def rope(**changes: object) -> Change:
    return config(rope_parameters={"rope_theta": 1e4, "rope_type": "default", **changes})


def hide_a_shard(folder: Path) -> None:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    shard = weight_map[NORM]
    (folder / shard).rename(folder / f".{shard}")
    hidden = {name: f".{shard}" if file == shard else file for name, file in weight_map.items()}
    edit_json(folder / INDEX, weight_map=hidden)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "somebody/else"}
REFUSED: dict[str, tuple[str, Change, str]] = {
    "adapter": ("dense", write("adapter_config.json", ADAPTER), "holds an adapter (adapter_"),
    "adapter's weights": ("dense", stray("adapter_model.safetensors"), "may belong to another"),
    "second file": ("dense", stray("zz.safetensors"), "zz.safetensors may belong to another model"),
    "Mistral's, no index": ("dense", stray("consolidated.safetensors"), "(beside model.safet"),
    "shard without index entry": ("sharded", stray("model-9.safetensors"), "does not name it"),
    "index and one file": ("sharded", stray(WEIGHTS), "which transformers loads, and an index"),
    "index of other files": ("sharded", index_of(shuffle), "puts it elsewhere or leaves it out"),
    "index leaves out": ("sharded", index_of(lambda m: m.pop(NORM)), "or leaves it out: fetch"),
    "tensor in two shards": ("sharded", in_two_shards, f"{NORM} lies in "),
    "second quantisation config": ("dense", write("hf_quant_config.json", {}), "which vLLM alone"),
    "config of another file": ("dense", config(configuration_files=["b"]), "configuration_files"),
    "weights of another file": ("dense", config(transformers_weights="b"), "transformers_weights"),
    "speculators": ("dense", config(speculators_config={"verifier": {}}), "speculators_config = "),
    "text config": ("dense", config(text_config={"hidden_size": 8}), "text_config = "),
    "two classes": ("dense", config(architectures=["A", "LlamaForCausalLM"]), "architecture A "),
    "not causal": ("dense", config(is_causal=False), "is_causal = False, which"),
    "stand-in for a method": ("dense", config(to_dict=3), "to_dict = 3, which"),
    "kernel": ("dense", config(fusion_config={"x": 1}), "fusion_config = {'x': 1}, which"),
    "window of a Llama": ("dense", config(sliding_window=24), "sliding_window = 24"),
    "part of RoPE": ("dense", rope(partial_rotary_factor=0.5), "partial_rotary_factor: "),
    "part, outside": ("dense", config(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5"),
    "RoPE of fewer": ("dense", rope(rope_dim=16), "unknown field `rope_dim`"),
    "RoPE of one reader": (
        "dense",
        rope(rope_type="proportional"),
        "value 'proportional'",
    ),
    "RoPE by length": (
        "dense",
        rope(rope_type="longrope"),
        "value 'longrope'",
    ),
    "Mistral's biases": ("dense", config(**MISTRAL, mlp_bias=True), "mlp_bias = True"),
    "quantised in name": ("dense", config(quantization_config=FP8), "its tensors are plain"),
    "hidden shard": ("sharded", hide_a_shard, "which is no .safetensors file there"),
    "tied, other head": ("tied", own_head, "says tie_word_embeddings, and lm_head.weight differs"),
    "layers that differ otherwise": ("pruned", other_layers, "unknown field `rope_theta`"),
    "dense with layers": ("dense", config(per_layer_config={"0": {}}), "has per_layer_config"),
    "labels": ("dense", config(num_labels=10**9), "num_labels: Expected `int` <= 100000; it is 1"),
    "odd RoPE": ("dense", config(rope_scaling=["yarn"]), "(rope_scaling: Expected `object | null`"),
    "odd factor": ("dense", config(rope_parameters={"factor": "2"}), "rope_parameters.factor"),
    "odd positions": ("dense", config(max_position_embeddings=1e99), "max_position_embeddings: "),
    "odd tie": ("dense", config(tie_word_embeddings="false"), "tie_word_embeddings: Expected"),
    "odd dtype": ("dense", config(dtype=["float32"]), "(dtype: Expected `str | null`"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_two_models_in_one_folder_are_refused(kind: str, saved: Path, tmp_path: Path) -> None:
    name, change, words = REFUSED[kind]
    folder = Path(shutil.copytree(saved / name, tmp_path / "model"))
    read_folder(folder)
    change(folder)
    with pytest.raises(InputError) as caught:
        read_folder(folder)
    assert words in str(caught.value) and "\n" not in str(caught.value)


KERNEL = "somebody/kernel"
READ: dict[str, tuple[str, list[Change]]] = {
    "full snapshot of a Mistral": (
        "sharded",
        [write("params.json", {"dim": 8}), stray("consolidated.safetensors"), write("tekken.json")],
    ),
    "GGUF and pickles": (
        "dense",
        [write(name) for name in ("model.gguf", "pytorch_model.bin", "consolidated.00.pth")],
    ),
    "subfolders": (
        "dense",
        [write("original/params.json", {}), write("original/model.safetensors")],
    ),
    "embedding model's files": (
        "dense",
        [
            write("modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "1"}]),
            write("1/config.json", {"pooling_mode_lasttoken": True}),
        ],
    ),
    "kernels named in the config": (
        "dense",
        [
            config(
                attn_implementation=KERNEL,
                _attn_implementation=KERNEL,
            )
        ],
    ),
    "remote code of a known family": (
        "dense",
        [config(auto_map={"AutoModelForCausalLM": "evil.Model"}), write("evil.py")],
    ),
    "words that decide nothing": ("dense", [config(is_llama_config=True, use_mrope=False)]),
    "another dtype in the config": ("dense", [config(dtype="float16")]),
    "tied, equal head": ("tied", [partial(own_head, difference=0.0)]),
}


@pytest.mark.parametrize("kind", READ)
def test_what_lies_beside_a_model_changes_nothing(kind: str, saved: Path, tmp_path: Path) -> None:
    name, changes = READ[kind]
    folder = Path(shutil.copytree(saved / name, tmp_path / "model"))
    hashes = file_hashes(folder)
    for change in changes:
        change(folder)
    tokens = torch.arange(24)[None]
    with torch.inference_mode():
        expected, found = (load(path)(tokens).logits for path in (saved / name, folder))
    assert torch.equal(expected, found)
    assert kind == "tied, equal head" or file_hashes(folder) == hashes


def test_the_file_chooses_no_attention(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "pruned", tmp_path / "model"))
    config(attn_implementation=KERNEL)(folder)
    state = load_file(folder / WEIGHTS)
    for model in (load(folder), with_weights(folder, state)):
        assert isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa"
    assert (
        "transformers_weights"
        not in class_config({**read_config(folder), "transformers_weights": "x"}).to_dict()
    )


def test_a_checkpoint_that_was_quantised_is_read_and_not_cut(saved: Path, tmp_path: Path) -> None:
    quantise(saved / "pruned", tmp_path / "int8")
    stored = read_folder(tmp_path / "int8")
    assert (stored.shape.quantization, stored.shape.pruned) == ("compressed-tensors", True)
    assert stored.shape.weight_bytes == (tmp_path / "int8" / WEIGHTS).stat().st_size
    with pytest.raises(InputError, match=r"is quantised \(compressed-tensors\).*then quantise"):
        read_stored_model(tmp_path / "int8")
    tokens = torch.arange(24)[None]
    with torch.inference_mode():
        plain, found = (load(path)(tokens).logits for path in (saved / "pruned", tmp_path / "int8"))
    assert 0 < float((plain - found).abs().max()) < 0.1 * float(plain.abs().max())
    tensors = load_file(tmp_path / "int8" / WEIGHTS)
    for name, words in {
        "model.layers.9.mlp.up_proj.weight": "which its config.json does not know",
        NORM: "has the shape",
    }.items():
        save_file({**tensors, name: torch.zeros(3)}, tmp_path / "int8" / WEIGHTS)
        with pytest.raises(InputError, match=words):
            read_folder(tmp_path / "int8")
