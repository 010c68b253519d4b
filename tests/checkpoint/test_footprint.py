"""Predicted sizes against the bytes of saved files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grasp_deploy.checkpoint.cache import CACHE
from grasp_deploy.checkpoint.footprint import compare, footprint
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.read.validate import read_stored_model
from tests.tiny import VARIANTS, random_kept, slice_by_hand, tiny_model


def tensor_bytes(directory: Path) -> int:
    """Bytes of all tensors in a folder's files, counted from the tensors themselves."""
    tensors = [t for path in directory.glob("*.safetensors") for t in load_file(path).values()]
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weight_bytes_are_those_of_the_files(variant: str, tmp_path: Path) -> None:
    dense = tiny_model(dtype=torch.bfloat16, **VARIANTS[variant])
    for model in (dense, slice_by_hand(dense, random_kept(dense.config))):
        directory = tmp_path / model.config.model_type
        model.save_pretrained(directory)
        shape = read_stored_model(directory).shape  # every family passes
        assert shape == model_shape(read_config(directory)) and shape.pruned == (model is not dense)
        predicted = footprint(shape)
        assert predicted.weight_bytes == tensor_bytes(directory)
        assert predicted.parameters == sum(weight.numel() for weight in model.parameters())


def test_kv_bytes_are_those_of_a_filled_cache(tmp_path: Path) -> None:
    dense = tiny_model("qwen3")
    pruned = slice_by_hand(dense, random_kept(dense.config))
    pruned.save_pretrained(tmp_path)
    cache = pruned(torch.arange(7)[None])[CACHE]
    held = sum(t.numel() * t.itemsize for layer in cache.layers for t in (layer.keys, layer.values))
    shape = model_shape(read_config(tmp_path))
    assert footprint(shape).kv_bytes_per_token * 7 == held
    assert footprint(shape, kv_dtype_bytes=1).kv_bytes_per_token * 7 * 4 == held


def test_cached_tokens_fill_the_memory_beside_the_weights(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    shape = model_shape(read_config(tmp_path))
    per_token = 3 * 2 * 2 * 32 * 4  # layers, K and V, KV heads, head size, float32
    memory = shape.weight_bytes + 10 * per_token
    for spare, tokens in ((0, 10), (-1, 9), (per_token - 1, 10), (per_token, 11)):
        figures = footprint(shape, memory_bytes=memory + spare).as_dict()
        assert figures["cached_tokens_that_fit"] == tokens
        assert figures["memory_bytes"] == memory + spare
    assert footprint(shape, memory_bytes=shape.weight_bytes // 2).cached_tokens_that_fit == 0
    four_bits = replace(shape, quantization="awq", stored_bytes=shape.parameters // 2)
    assert footprint(four_bits).weight_bytes == shape.parameters // 2


def test_compare_gives_pruned_as_a_share_of_dense(tmp_path: Path) -> None:
    dense = tiny_model("llama")
    kept = [([0, 1], range(96)), ([1], range(48)), ([0], [5])]
    slice_by_hand(dense, kept).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    ratios = compare(dense_shape(config), model_shape(config))
    assert ratios["kv_bytes_per_token"] == 4 / 6
    parameters = sum(weight.numel() for weight in dense.parameters())
    removed = 2 * (32 * 64 * 6) + (48 + 95) * 3 * 64
    assert ratios["parameters"] == ratios["weight_bytes"] == (parameters - removed) / parameters
