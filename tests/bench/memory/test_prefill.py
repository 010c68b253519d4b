"""The predicted prefill against the tensors that are really alive, and against the paper."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from grasp_deploy.bench.memory.child import kv_bytes, prefill
from grasp_deploy.bench.memory.prefill import PrefillMemory, predict_prefill
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.compression.synthesize import synthesize
from grasp_deploy.config.compress_config import CompressConfig
from tests.bench.memory.live_tensors import LiveTensors
from tests.tiny import VARIANTS, pruned_config, tiny_config

CONFIGS = Path(__file__).parents[3] / "benchmarks" / "configs"
LLAMA_2_7B = CONFIGS / "llama-2-7b.json"
MIB = 2**20
WIDE_AND_NARROW: list[dict[str, Any]] = [
    {},
    {"intermediate_size": 16},  # the attention is the worst moment
    {"hidden_size": 512, "intermediate_size": 8},  # RMSNorm or down_proj is
    {"num_attention_heads": 8, "num_key_value_heads": 2},
    {"vocab_size": 65536},  # with few tokens, the logits are
]


def trace(model: PreTrainedModel, batch: int, tokens: int) -> tuple[int, LiveTensors]:
    """Bytes of the KV cache after a prefill, and all tensors that were alive meanwhile."""
    known = [*model.parameters(), *model.buffers()]
    with LiveTensors(known) as tensors, torch.inference_mode():
        token_ids = torch.zeros((batch, tokens), dtype=torch.int64, device=model.device)
        output = prefill(model, token_ids)
    return kv_bytes(output), tensors


def predicted(shape: ModelShape, batch: int, tokens: int) -> tuple[int, int]:
    """KV bytes, and all bytes at the peak that are not weights."""
    memory = predict_prefill(shape, batch, tokens)
    assert memory.weight_bytes == shape.weight_bytes
    return memory.kv_bytes, memory.peak_bytes - memory.weight_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if "sliding" not in name])
def test_the_peak_is_exact_for_every_family(variant: str, dtype: str) -> None:
    for sizes in WIDE_AND_NARROW:
        config = tiny_config(**{**VARIANTS[variant], **sizes})
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
        shape = replace(model_shape(config.to_dict()), dtype=dtype)
        for batch, tokens in ((2, 7), (3, 64)):
            cache_bytes, tensors = trace(model, batch, tokens)
            assert (cache_bytes, tensors.peak_bytes) == predicted(shape, batch, tokens)


@pytest.mark.parametrize("layers", [[(1, 400), (2, 8), (1, 8)], [(1, 8), (1, 8), (2, 400)]])
def test_the_peak_is_where_a_wide_layer_meets_a_filled_cache(layers: list[tuple[int, int]]) -> None:
    config: Any = pruned_config(tiny_config("llama", intermediate_size=400), layers)
    config.architectures = ["GraspLlamaForCausalLM"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    cache_bytes, tensors = trace(model, 2, 33)
    shape = replace(model_shape(config.to_dict()), dtype="bfloat16")
    assert (cache_bytes, tensors.peak_bytes) == predicted(shape, 2, 33)


@pytest.mark.parametrize("name", ["llama-2-7b", "qwen3-8b"])
def test_the_peak_is_exact_at_real_sizes(name: str) -> None:
    """On the meta device, where nothing is computed or stored."""
    path = CONFIGS / f"{name}.json"
    model = random_model(path, "meta")
    cache_bytes, tensors = trace(model, 4, 2048)
    assert (cache_bytes, tensors.peak_bytes) == predicted(model_shape(read_config(path)), 4, 2048)


def sizes_mib(memory: PrefillMemory) -> dict[str, float]:
    return {key.removesuffix("_bytes"): size / MIB for key, size in memory.as_dict().items()}


# Prompt tokens; the paper's KV cache and prefill peak of LLaMA-2-7B at batch 4, in MiB.
DENSE = [(256, 512, 13990.8), (512, 1024, 15120.9), (1024, 2048, 17375.2), (2048, 4096, 21889.8)]


@pytest.mark.parametrize(("tokens", "cache", "peak"), DENSE)
def test_llama_2_7b_is_as_in_the_paper(tokens: int, cache: float, peak: float) -> None:
    sizes = sizes_mib(predict_prefill(model_shape(read_config(LLAMA_2_7B)), 4, tokens))
    assert sizes["weight"] == pytest.approx(12852.5, abs=0.1)
    assert sizes["kv"] == pytest.approx(cache, abs=0.1)
    assert sizes["weight"] + sizes["kv"] < sizes["peak"] < peak


# The paper's keep ratio, weights, KV cache at 2,048 tokens, and prefill peak where it has one.
PRUNED = [
    (0.8, 10382.1, 3348, {}),
    (0.6, 7910.7, 2424, {256: 8644.5, 512: 9321.2, 1024: 10686.6, 2048: 13425.8}),
]


@pytest.mark.parametrize(("keep", "weights", "cache", "peaks"), PRUNED)
def test_pruned_llama_2_7b_is_as_in_the_paper(
    keep: float, weights: float, cache: float, peaks: dict[int, float], tmp_path: Path
) -> None:
    config = CompressConfig(model=str(LLAMA_2_7B), keep=keep)
    shape = synthesize(config, tmp_path / "pruned", kv_keep=cache / 4096)
    sizes = sizes_mib(predict_prefill(shape, 4, 2048))
    assert sizes["kv"] == pytest.approx(cache, abs=0.1)
    assert sizes["weight"] == pytest.approx(weights, rel=0.005)
    for tokens, peak in peaks.items():
        assert sizes_mib(predict_prefill(shape, 4, tokens))["peak"] < peak


def test_the_figures_of_a_record_add_up() -> None:
    memory = predict_prefill(model_shape(read_config(LLAMA_2_7B)), 4, 256)
    figures = memory.as_dict()
    assert list(figures) == ["weight_bytes", "kv_bytes", "peak_bytes", "other_bytes"]
    parts = figures["weight_bytes"] + figures["kv_bytes"] + figures["other_bytes"]
    assert parts == figures["peak_bytes"]


def test_twice_the_kv_heads_are_twice_the_kv_bytes() -> None:
    few, many = (
        predict_prefill(model_shape(tiny_config("llama", num_key_value_heads=k).to_dict()), 2, 99)
        for k in (2, 4)
    )
    assert many.kv_bytes == 2 * few.kv_bytes
