"""One model, whoever reads the folder: kinds of folders, each refused in a line or read as one."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.read.loading import class_config, load, with_weights
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.checkpoint.read.validate import check_tokenizer, read_folder, read_stored_model
from grasp_deploy.checkpoint.write.quantize import quantize
from grasp_deploy.errors import InputError
from tests.checkpoint.read.damages import (
    NORM,
    REFUSED,
    WEIGHTS,
    Change,
    config,
    own_head,
    stray,
    tensors,
    write,
)
from tests.tiny import VARIANTS, logits_of, random_kept, save_tiny, slice_by_hand


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dense models in one file, in several, with tied embeddings, with experts; two pruned ones."""
    folder = tmp_path_factory.mktemp("saved")
    dense = save_tiny("llama", folder / "dense")
    dense.save_pretrained(folder / "sharded", max_shard_size="30KB")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(folder / "pruned")
    save_tiny("llama", folder / "tied", tie_word_embeddings=True)
    experts = save_tiny(directory=folder / "experts", **VARIANTS["qwen3-moe"])
    slice_by_hand(experts, random_kept(experts.config)).save_pretrained(folder / "experts-pruned")
    return folder


@pytest.mark.parametrize(("name", "change", "culprit"), REFUSED)
def test_a_folder_that_two_could_read_differently_is_refused_in_one_line(
    name: str, change: Change, culprit: str, saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved / name, tmp_path / "model"))
    read_stored_model(folder)
    change(folder)
    with pytest.raises(InputError) as caught:
        read_stored_model(folder)
    assert culprit in str(caught.value) and "\n" not in str(caught.value)


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
        [config(attn_implementation=KERNEL, _attn_implementation=KERNEL)],
    ),
    "plain tuples": ("dense", [config(return_dict=False)]),
    "remote code of a known family": (
        "dense",
        [config(auto_map={"AutoModelForCausalLM": "evil.Model"}), write("evil.py")],
    ),
    "words that decide nothing": ("dense", [config(is_llama_config=True, use_mrope=False)]),
    "another dtype in the config": ("dense", [config(dtype="float16")]),
    "both names of RoPE": ("dense", [config(rope_theta=1e4, rope_scaling={"type": "default"})]),
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
    expected, found = (logits_of(load(path), tokens) for path in (saved / name, folder))
    assert torch.equal(expected, found)
    assert kind == "tied, equal head" or file_hashes(folder) == hashes


def test_weights_that_may_not_be_read_are_not_called_damaged(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(saved / "dense", tmp_path / "model"))
    folder.chmod(0o755)
    (folder / WEIGHTS).chmod(0)
    monkeypatch.chdir(folder)  # whose parents others may not enter
    user = os.geteuid()
    try:
        os.seteuid(user or 65534)  # root may read all
        with pytest.raises(PermissionError, match=WEIGHTS):
            read_folder(Path())
    finally:
        os.seteuid(user)


def test_the_file_chooses_no_attention(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "pruned", tmp_path / "model"))
    config(attn_implementation=KERNEL)(folder)
    state = load_file(folder / WEIGHTS)
    for model in (load(folder), with_weights(folder, state)):
        assert isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa"
    values = {**read_config(folder), "transformers_weights": "x"}
    assert "transformers_weights" not in class_config(values).to_dict()


def test_a_checkpoint_that_was_quantised_is_read_and_not_cut(saved: Path, tmp_path: Path) -> None:
    quantize(saved / "pruned", "int8", tmp_path / "int8")
    stored = read_folder(tmp_path / "int8")
    assert (stored.shape.quantization, stored.shape.pruned) == ("compressed-tensors", True)
    assert stored.shape.weight_bytes == (tmp_path / "int8" / WEIGHTS).stat().st_size
    with pytest.raises(InputError, match=r"is quantised \(compressed-tensors\).*and quantise"):
        read_stored_model(tmp_path / "int8")
    tokens = torch.arange(24)[None]
    folders = saved / "pruned", tmp_path / "int8"
    plain, found = (logits_of(load(path), tokens) for path in folders)
    assert 0 < float((plain - found).abs().max()) < 0.1 * float(plain.abs().max())
    method = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    config(quantization_config={**method, "config_groups": {"W8A8": ["Linear"]}})(tmp_path / "int8")
    assert read_folder(tmp_path / "int8").shape.group_columns == 0
    whole = (tmp_path / "int8" / WEIGHTS).read_bytes()
    for name in ("model.layers.9.mlp.up_proj.weight", NORM):
        (tmp_path / "int8" / WEIGHTS).write_bytes(whole)
        tensors(**{name: torch.zeros(3)})(tmp_path / "int8")
        with pytest.raises(InputError, match=name):
            read_folder(tmp_path / "int8")


def test_buffers_and_a_second_copy_of_tied_embeddings_are_left_out(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, tie_word_embeddings=True)
    own_head(tmp_path, difference=0.0)
    tensors(**{"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(16)})(tmp_path)
    stored = read_stored_model(tmp_path)
    assert list(stored.files) == list(stored.shape.tensor_shapes())


def test_a_folder_without_a_tokenizer_is_refused(saved: Path) -> None:
    check_tokenizer(saved / "dense")
    with pytest.raises(InputError, match=r"holds no tokenizer"):
        check_tokenizer(saved / "pruned")
