"""Damaged, missing and contradictory model files, each told in one line; and what passes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import check_tokenizer, read_stored_model
from grasp_deploy.errors import InputError
from tests.cli.command import edit_json
from tests.tiny import random_kept, save_tiny, slice_by_hand

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
GATE = "model.layers.0.mlp.gate_proj.weight"
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model in one file, one in several, and a pruned one."""
    folder = tmp_path_factory.mktemp("saved")
    dense = save_tiny("llama", folder / "dense", dtype=torch.bfloat16)
    dense.save_pretrained(folder / "sharded", max_shard_size="30KB")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(folder / "pruned")
    assert len(list((folder / "sharded").glob("*.safetensors"))) > 3
    return folder


def tensors(**changes: torch.Tensor | None) -> Damage:
    """Replace, add or (None) remove tensors of a folder with one weight file."""

    def damage(folder: Path) -> None:
        changed = {**load_file(folder / WEIGHTS), **changes}
        kept = {name: value for name, value in changed.items() if value is not None}
        save_file(kept, folder / WEIGHTS)

    return damage


def content(change: Callable[[bytes], bytes], name: str = WEIGHTS) -> Damage:
    """Change the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def config(**changes: object) -> Damage:
    return lambda folder: edit_json(folder / "config.json", **changes)


def index(**changes: object) -> Damage:
    return lambda folder: edit_json(folder / INDEX, **changes)


def only_pickles(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model-00001-of-00002.bin")


def third_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[2]


def cut_third_shard(folder: Path) -> None:
    third_shard(folder).write_bytes(third_shard(folder).read_bytes()[:-4])


def keep_the_backbone(folder: Path) -> None:
    """As `LlamaModel.save_pretrained` names the tensors."""
    held = load_file(folder / WEIGHTS)
    held.pop("lm_head.weight")
    save_file({n.removeprefix("model."): t for n, t in held.items()}, folder / WEIGHTS)


def widen_a_layer(folder: Path) -> None:
    layers = json.loads((folder / "config.json").read_text())["per_layer_config"]
    layers["2"]["intermediate_size"] += 1
    edit_json(folder / "config.json", per_layer_config=layers)


MISSING = {
    f"model.layers.{layer}.mlp.{name}_proj.weight": None
    for layer in (0, 1)
    for name in ("gate", "up", "down")
}
Q_BIAS = "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("model", "damage", "words"),
    [
        *(
            ("dense", content(change), f"DIR/{WEIGHTS} is cut short or damaged (")
            for change in (
                lambda data: b"",
                lambda data: data[:100],
                lambda data: data[:-1],
                lambda data: data + b"\0",
                lambda data: data[:9] + b"\xff" + data[10:],
            )
        ),
        ("dense", content(lambda _: b"version https://git-lfs.github.com"), "run `git lfs pull`"),
        ("sharded", cut_third_shard, "-00003-of-"),
        ("sharded", lambda f: third_shard(f).unlink(), "which is no .safetensors file there"),
        (
            "sharded",
            index(weight_map={GATE: "../dense/model.safetensors"}),
            "no .safetensors file there",
        ),
        ("sharded", index(weight_map={GATE: ["b"]}), "weight_map[...]: Expected `str`"),
        ("sharded", index(metadata=None), "metadata: Expected `object`"),
        ("dense", only_pickles, "only as pickle (pytorch_model-00001-of-00002.bin), which can run"),
        ("dense", lambda f: (f / WEIGHTS).unlink(), "DIR holds no weights (model.safetensors or"),
        ("dense", tensors(**MISSING), "0.mlp.down_proj.weight and 3 more, which its config.json"),
        ("dense", keep_the_backbone, "it holds a backbone without its head; save the whole"),
        ("dense", tensors(**{Q_BIAS: torch.zeros(128)}), f"DIR holds {Q_BIAS}, which its config"),
        ("dense", config(intermediate_size=95), "(96, 64) in DIR/model.safetensors and (95, 64)"),
        ("dense", tensors(**{GATE: torch.zeros(96, 64, dtype=torch.int8)}), "is I8: take a model"),
        (
            "dense",
            tensors(**{"model.norm.weight": torch.ones(64)}),
            "model.embed_tokens.weight is bfloat16 and model.norm.weight is float32: save the",
        ),
        ("pruned", widen_a_layer, "model.layers.2.mlp.gate_proj.weight has the shape"),
        ("pruned", config(dtype="float16"), "config.json says float16 and the tensors are bfloat"),
    ],
)
def test_damaged_folders(
    saved: Path, tmp_path: Path, model: str, damage: Damage, words: str
) -> None:
    folder = Path(shutil.copytree(saved / model, tmp_path / "model"))
    read_stored_model(folder)
    damage(folder)
    with pytest.raises(InputError) as caught:
        read_stored_model(folder)
    message = str(caught.value)
    assert words in message.replace(str(folder), "DIR") and "\n" not in message


def test_every_tensor_is_where_it_is_said_to_lie(saved: Path) -> None:
    stored = read_stored_model(saved / "sharded")
    weights = load_file(saved / "dense" / WEIGHTS)
    assert stored.files.keys() == weights.keys()
    for name, path in stored.files.items():
        assert torch.equal(load_file(path)[name], weights[name])


def test_buffers_and_a_second_copy_of_tied_embeddings_are_left_out(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, tie_word_embeddings=True)
    head = load_file(tmp_path / WEIGHTS)["model.embed_tokens.weight"].clone()
    buffers = {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    tensors(**buffers, **{"lm_head.weight": head})(tmp_path)
    stored = read_stored_model(tmp_path)
    assert list(stored.files) == list(stored.shape.tensor_shapes())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_where_kv_heads_are_null_there_are_as_many_as_query_heads(
    family: str, tmp_path: Path
) -> None:
    model = save_tiny(family, tmp_path, num_key_value_heads=4)
    edit_json(tmp_path / "config.json", num_key_value_heads=None)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(ids).logits, model(ids).logits)


def test_a_folder_without_a_tokenizer_is_refused(saved: Path) -> None:
    check_tokenizer(saved / "dense")
    with pytest.raises(InputError, match=r"holds no tokenizer .*copy the tokenizer files"):
        check_tokenizer(saved / "pruned")
