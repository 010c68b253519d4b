"""Damaged, missing and contradictory model files, each told in one line; and what passes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.validate import (
    check_checkpoint,
    check_tokenizer,
    check_weights,
    stored_dtype,
    weight_files,
)
from grasp_deploy.errors import InputError
from tests.tiny import VARIANTS, random_kept, save_tiny, slice_by_hand, tiny_model

INDEX = "model.safetensors.index.json"
GATE = "model.layers.0.mlp.gate_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_tiny("llama", directory, dtype=torch.bfloat16)
    return directory


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A private copy of a sound folder, to damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    directory = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(directory, max_shard_size="60KB")
    assert len(list(directory.glob("*.safetensors"))) > 3
    return directory


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of a folder with one weight file."""
    path = directory / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


def refusal(directory: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_checkpoint(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(directory), "DIR")


@pytest.mark.parametrize("variant", VARIANTS)
def test_sound_folders_of_every_family_pass(variant: str, tmp_path: Path) -> None:
    dense = save_tiny(directory=tmp_path / "dense", **VARIANTS[variant])
    pruned = slice_by_hand(dense, random_kept(dense.config))
    pruned.save_pretrained(tmp_path / "pruned")
    for model, name in ((dense, "dense"), (pruned, "pruned")):
        shape = check_checkpoint(tmp_path / name)
        assert shape.pruned == (name == "pruned")
        assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_entries_say_where_each_tensor_lies(sharded: Path) -> None:
    entries = check_weights(sharded, model_shape(read_config(sharded)))
    weights = dict(tiny_model("llama").named_parameters())
    assert {name: entry.shape for name, entry in entries.items()} == {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    assert {name: entry.path for name, entry in entries.items()} == weight_files(sharded)
    for name, entry in entries.items():
        assert torch.equal(load_file(entry.path)[name], weights[name])
        assert entry.dtype == "F32"


def test_buffers_and_a_second_copy_of_tied_embeddings_are_left_out(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, tie_word_embeddings=True)
    shape = check_checkpoint(tmp_path)
    inverse_frequencies = {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    edit_tensors(tmp_path, **inverse_frequencies, **{"lm_head.weight": torch.zeros(256, 64)})
    assert list(check_weights(tmp_path, shape)) == list(shape.tensor_shapes())


def test_the_tensors_dtype_counts_where_a_dense_config_names_another(model: Path) -> None:
    edit_json(model / "config.json", dtype="float16")
    shape = check_checkpoint(model)
    assert stored_dtype(check_weights(model, shape)) == "bfloat16"


def test_a_pruned_config_with_another_dtype_is_refused(tmp_path: Path) -> None:
    dense = tiny_model("qwen3")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", dtype="float16")
    assert refusal(tmp_path) == (
        "DIR/config.json says float16 and the tensors are float32: "
        "one of them was replaced; export the checkpoint again"
    )


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 100, 5000, -1])
def test_a_shard_cut_short_anywhere_is_refused(model: Path, kept: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    message = refusal(model)
    assert message.startswith("DIR/model.safetensors is cut short or damaged (")
    assert message.endswith("): fetch the file again")


@pytest.mark.parametrize("position", [0, 7, 8, 9, 40])
def test_a_damaged_header_is_refused(model: Path, position: int) -> None:
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    assert refusal(model).startswith("DIR/model.safetensors is cut short or damaged (")


def test_bytes_behind_the_end_are_refused(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    assert refusal(model).startswith("DIR/model.safetensors is cut short or damaged (")


def test_a_git_lfs_pointer_is_named_as_such(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha")
    assert refusal(model) == (
        "DIR/model.safetensors is a Git LFS pointer, not the weights: "
        "run `git lfs pull` in its folder"
    )


def test_a_truncated_shard_among_many_is_named(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[2]
    path.write_bytes(path.read_bytes()[:-4])
    assert refusal(sharded).startswith(f"DIR/{path.name} is cut short or damaged (")


def test_an_index_that_names_an_absent_file_is_refused(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[1]
    path.unlink()
    assert refusal(sharded) == (
        f"DIR/{INDEX} names {path.name}, and there is no such file: fetch it"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read (Expecting property name"),
        ("[]", "is not a JSON object"),
        ("{}", "does not fit (Object missing required field `weight_map`)"),
        ('{"weight_map": {"a": ["b"]}}', "does not fit (weight_map[...]: Expected `str`"),
        ('{"weight_map": {}, "metadata": 1}', "does not fit (metadata: Expected `object | null`"),
        ('{"weight_map": {}}', "maps no tensors to files beside it"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "maps no tensors to files beside it"),
    ],
)
def test_a_broken_index_is_refused(sharded: Path, content: str, reason: str) -> None:
    (sharded / INDEX).write_text(content)
    message = refusal(sharded)
    assert message.startswith(f"DIR/{INDEX} {reason}")
    assert message.endswith(": fetch the model again")


def test_an_index_that_transformers_would_not_take_is_refused(sharded: Path) -> None:
    edit_json(sharded / INDEX, metadata=None)
    assert refusal(sharded) == (
        f'DIR/{INDEX} has no "metadata", and without it transformers loads no model: write '
        '"metadata": {} into it, or fetch the model again'
    )


def test_an_index_that_names_the_wrong_file_is_refused(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    other = next(file for file in weight_map.values() if file != weight_map[GATE])
    edit_json(sharded / INDEX, weight_map={**weight_map, GATE: other})
    assert refusal(sharded) == (
        f"DIR/{INDEX} says that {other} holds {GATE}, and it does not: fetch the model again"
    )


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model-00001-of-00002.bin").touch()
    assert refusal(model) == (
        "DIR has its weights only as pickle (pytorch_model-00001-of-00002.bin), which can run "
        "code: convert them where you trust them, with transformers: "
        'from_pretrained("DIR").save_pretrained(...) writes safetensors'
    )


def test_a_folder_without_weights_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert refusal(model) == (
        f"DIR holds no weights (model.safetensors or {INDEX}): fetch the model again"
    )


def test_missing_tensors_are_named(model: Path) -> None:
    projections = ("gate_proj", "up_proj", "down_proj")
    names = [f"model.layers.{layer}.mlp.{name}.weight" for layer in (0, 1) for name in projections]
    edit_tensors(model, **dict.fromkeys(names))
    assert refusal(model) == (
        "DIR lacks model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight, "
        "model.layers.0.mlp.down_proj.weight and 3 more, which its config.json asks for: "
        "fetch the model again"
    )


def test_unexpected_tensors_are_named(model: Path) -> None:
    edit_tensors(model, **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(128)})
    assert refusal(model) == (
        "DIR holds model.layers.0.self_attn.q_proj.bias, which its config.json does not know: "
        "the two do not belong together; fetch the model again"
    )


def test_a_config_that_contradicts_a_tensor_is_refused(model: Path) -> None:
    edit_json(model / "config.json", intermediate_size=95)
    assert refusal(model) == (
        f"{GATE} has the shape (96, 64) in DIR/model.safetensors and (95, 64) by config.json: "
        "the two do not belong together; fetch the model again"
    )


def test_a_pruned_layer_that_contradicts_its_tensors_is_refused(tmp_path: Path) -> None:
    dense = tiny_model("llama")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    layers = json.loads(config.read_text())["per_layer_config"]
    key = next(key for key in layers if int(key) == 2)
    was = layers[key]["intermediate_size"]
    layers[key]["intermediate_size"] += 1
    edit_json(config, per_layer_config=layers)
    assert refusal(tmp_path) == (
        f"model.layers.2.mlp.gate_proj.weight has the shape ({was}, 64) in DIR/model.safetensors "
        f"and ({was + 1}, 64) by config.json: the two do not belong together; "
        "fetch the model again"
    )


def test_weights_that_are_no_floats_are_refused(model: Path) -> None:
    edit_tensors(model, **{GATE: torch.zeros(96, 64, dtype=torch.int8)})
    assert refusal(model) == (
        f"{GATE} in DIR/model.safetensors is I8: "
        "take a model in float32, bfloat16, float16 that is not quantised"
    )


def test_mixed_dtypes_are_refused(model: Path) -> None:
    edit_tensors(model, **{"model.norm.weight": torch.ones(64)})
    assert refusal(model) == (
        "model.embed_tokens.weight is bfloat16 and model.norm.weight is float32: "
        'save the model in one dtype first, with from_pretrained("DIR", dtype=...)'
        ".save_pretrained(...)"
    )


def test_a_folder_without_a_tokenizer_is_refused(model: Path) -> None:
    check_tokenizer(model)
    (model / "tokenizer.json").unlink()
    with pytest.raises(InputError) as caught:
        check_tokenizer(model)
    assert str(caught.value) == (
        f"{model} holds no tokenizer (tokenizer.json, tokenizer.model, vocab.json, tekken.json): "
        "copy the tokenizer files of the base model into it"
    )
