"""The predicted prefill against the tensors that are really alive, and against the paper."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from grasp_deploy.bench.engines.memory_child import kv_bytes, prefill
from grasp_deploy.bench.memory import predict_prefill
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.loading import random_model
from tests.bench.live_tensors import LiveTensors
from tests.tiny import VARIANTS, pruned_config, tiny_config

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
LLAMA_2_7B = CONFIGS / "llama-2-7b.json"
MIB = 2**20
WIDE_AND_NARROW: list[dict[str, Any]] = [
    {},
    {"intermediate_size": 16},  # the attention is the worst moment
    {"hidden_size": 512, "intermediate_size": 8},  # RMSNorm or down_proj is
    {"num_attention_heads": 8, "num_key_value_heads": 2},
    {"vocab_size": 65536},  # with few tokens, the logits are
]


def assert_exact(model: PreTrainedModel, shape: ModelShape, batch: int, tokens: int) -> None:
    """Compare the KV cache after a prefill, and the most that was alive, with their predictions."""
    known = [*model.parameters(), *model.buffers()]
    with LiveTensors(known) as tensors:
        token_ids = torch.zeros((batch, tokens), dtype=torch.int64, device=model.device)
        output = prefill(model, token_ids)
    sizes = predict_prefill(shape, batch, tokens)
    assert sizes.weight_bytes == shape.weight_bytes
    assert kv_bytes(output) == sizes.kv_bytes
    assert tensors.peak_bytes == sizes.peak_bytes - sizes.weight_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama-mha", "llama-biases", "mistral", "qwen2", "qwen3"])
def test_the_peak_is_exact_for_every_family(variant: str, dtype: str) -> None:
    for sizes in WIDE_AND_NARROW:
        config = tiny_config(**{**VARIANTS[variant], **sizes})
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
        shape = replace(model_shape(config.to_dict()), dtype=dtype)
        for batch, tokens in ((2, 7), (3, 64)):
            assert_exact(model, shape, batch, tokens)


@pytest.mark.parametrize("layers", [[(1, 400), (2, 8), (1, 8)], [(1, 8), (1, 8), (2, 400)]])
def test_the_peak_is_where_a_wide_layer_meets_a_filled_cache(layers: list[tuple[int, int]]) -> None:
    config: Any = pruned_config(tiny_config("llama", intermediate_size=400), layers)
    config.architectures = ["GraspLlamaForCausalLM"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    assert_exact(model, replace(model_shape(config.to_dict()), dtype="bfloat16"), 2, 33)


@pytest.mark.parametrize("name", ["llama-2-7b", "qwen3-8b"])
def test_the_peak_is_exact_at_real_sizes(name: str) -> None:
    """On the meta device, where nothing is computed or stored."""
    path = CONFIGS / f"{name}.json"
    assert_exact(random_model(path, "meta"), model_shape(read_config(path)), 4, 2048)


# Prompt tokens; the paper's KV cache and prefill peak of LLaMA-2-7B at batch 4, in MiB.
DENSE = [(256, 512, 13990.8), (512, 1024, 15120.9), (1024, 2048, 17375.2), (2048, 4096, 21889.8)]


@pytest.mark.parametrize(("tokens", "cache", "peak"), DENSE)
def test_llama_2_7b_is_as_in_the_paper(tokens: int, cache: float, peak: float) -> None:
    sizes = predict_prefill(model_shape(read_config(LLAMA_2_7B)), 4, tokens)
    assert sizes.weight_bytes / MIB == pytest.approx(12852.5, abs=0.1)
    assert sizes.kv_bytes / MIB == pytest.approx(cache, abs=0.1)
    assert sizes.weight_bytes + sizes.kv_bytes < sizes.peak_bytes < peak * MIB
