"""The predicted prefill against the tensors that are really alive, and against the paper."""

from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench.memory import Sizes
from grasp_deploy.bench.prefill import live_bytes, predict_prefill
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.evaluate.models import bench_models
from tests.tiny import VARIANTS, pruned_config, tiny_config

LLAMA_2_7B = Path(__file__).parents[2] / "benchmarks/configs/llama-2-7b.json"
MIB = 2**20


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("variant", ["llama-mha", "llama-biases", "mistral", "qwen2", "qwen3"])
def test_the_peak_is_exact_for_every_family(variant: str, pruned: bool, tmp_path: Path) -> None:
    config: Any = tiny_config(**VARIANTS[variant], dtype="bfloat16")
    if pruned:
        layers = [(1, 400), (config.num_key_value_heads, 40), (1, 8)]
        config = pruned_config(config, layers)
        config.architectures = [f"Grasp{name}" for name in config.architectures]
    config.save_pretrained(tmp_path)
    model = random_model(tmp_path, "cpu")
    kv, peak = live_bytes(model, 3, 64)
    sizes = predict_prefill(bench_models([str(tmp_path)], random_weights=True)[0], 3, 64)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert sizes == Sizes(weights, kv, weights + peak, peak - kv)


# Prompt tokens; the paper's KV cache and prefill peak of LLaMA-2-7B at batch 4, in MiB.
DENSE = [(256, 512, 13990.8), (512, 1024, 15120.9), (1024, 2048, 17375.2), (2048, 4096, 21889.8)]


@pytest.mark.parametrize(("tokens", "cache", "peak"), DENSE)
def test_llama_2_7b_is_as_in_the_paper(tokens: int, cache: float, peak: float) -> None:
    sizes = predict_prefill(bench_models([str(LLAMA_2_7B)], random_weights=True)[0], 4, tokens)
    assert sizes.weight_bytes / MIB == pytest.approx(12852.5, abs=0.1)
    assert sizes.kv_bytes / MIB == pytest.approx(cache, abs=0.1)
    assert sizes.weight_bytes + sizes.kv_bytes < sizes.peak_bytes < peak * MIB
