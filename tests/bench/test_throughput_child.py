"""Batches of random prompts: tokens as of generate(), and times that say what they claim."""

from typing import Any
from weakref import ref

import pytest
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from grasp_deploy.bench import throughput_child
from grasp_deploy.bench.throughput_child import Prompts, Timing, measure, random_prompts
from grasp_deploy.checkpoint.cache import PreallocatedLayer, empty_cache
from grasp_deploy.errors import InputError
from tests.tiny import VARIANTS, random_kept, slice_by_hand, tiny_model

PROMPTS = random_prompts(3, 11, 256, seed=0)


def greedy(model: PreTrainedModel, new_tokens: int) -> torch.Tensor:
    """The tokens that a measured batch is continued by."""
    tokens = torch.tensor(PROMPTS)
    cache = empty_cache(model, len(PROMPTS), 11 + new_tokens)
    parts = []
    with torch.inference_mode():
        for _ in range(new_tokens):
            tokens = throughput_child._next_tokens(model, tokens, cache)
            parts.append(tokens)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("variant", ["llama", "qwen2-tied", "qwen3", "qwen2-sliding"])
def test_tokens_are_those_of_generate(variant: str, pruned: bool) -> None:
    model = tiny_model(**VARIANTS[variant])
    if pruned:
        model = slice_by_hand(model, random_kept(model.config))
    generator: Any = model
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "eos_token_id": None}
    wanted = generator.generate(torch.tensor(PROMPTS), **options)
    assert torch.equal(greedy(model, 7), wanted[:, 11:])
    is_ours = isinstance(empty_cache(model, 1, 9).layers[0], PreallocatedLayer)
    assert is_ours != ("sliding" in variant), "transformers' own cache forgets"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("a bug of ours"), False),
    ],
)
def test_only_memory_that_runs_out_is_told_in_one_line(
    error: RuntimeError, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = []

    def fail(_: object, __: object, cache: Cache) -> None:
        caches.append(ref(cache))
        raise error

    monkeypatch.setattr(throughput_child, "_next_tokens", fail)
    words = r"^3 prompts of 11 tokens do not fit .* smaller batches" if told else "a bug of ours"
    with pytest.raises(InputError if told else RuntimeError, match=words) as raised:
        throughput_child.transformers_batch(tiny_model("llama"), PROMPTS, 2)
    assert (caches[0]() is None) == told, "what filled the memory is free for the other models"
    del raised


def test_the_prefill_ends_with_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still but for one second in the prefill and two in each decode step."""
    clock = [0.0]

    def step(model: PreTrainedModel, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        clock[0] += 1.0 if tokens.shape[1] > 1 else 2.0
        return tokens[:, :1]

    monkeypatch.setattr(throughput_child, "_next_tokens", step)
    monkeypatch.setattr(throughput_child, "_now", lambda device: clock[0])
    timing = throughput_child.transformers_batch(tiny_model("llama"), PROMPTS, 4)
    assert timing == ([1.0] * 3, [7.0] * 3)


def staggered(prompts: Prompts, new_tokens: int) -> Timing:
    """Request i has its first token after i + 1 seconds, then one every half a second."""
    first = [1.0 + i for i in range(len(prompts))]
    return first, [start + 0.5 * (new_tokens - 1) for start in first]


def test_a_child_loads_once_and_its_samples_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_child, "loaded", [])
    monkeypatch.setattr(throughput_child, "load_vllm", lambda **_: (staggered, 50))
    assert throughput_child.answer({"model": "m", "settings": {"engine": "vllm"}}) == {}
    batch = {"batch": 3, "prompt_tokens": 5, "new_tokens": 5, "seed": 0}
    sample = {"seconds": 5.0, "ttft_seconds": 2.0, "tpot_seconds": 0.5}
    assert throughput_child.answer(batch) == throughput_child.answer(batch) == sample
    assert measure((staggered, 50), 1, 5, 1, seed=0)["tpot_seconds"] is None


def test_prompts_are_random_and_the_same_for_the_same_seed() -> None:
    prompts, again, other = (random_prompts(3, 40, 50, seed) for seed in (7, 7, 8))
    assert prompts == again != other
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert all(len(prompt) == 40 and set(prompt) <= set(range(50)) for prompt in prompts)
