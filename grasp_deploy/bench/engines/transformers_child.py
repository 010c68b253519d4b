"""One transformers model in a child, and the time that batches take it.

Prefill with the logits of the last position only, then a greedy loop over a KV cache that was
allocated before, as a server's is: transformers' own dynamic cache copies all of it at each step,
and its static one attends to positions that are still empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from grasp_deploy.bench.engines.timing import Generate, Prompts, Timing, throughput_answers
from grasp_deploy.checkpoint.cache import CACHE, empty_cache
from grasp_deploy.checkpoint.read.loading import load as load_weights
from grasp_deploy.checkpoint.read.loading import random_model, resolve_device
from grasp_deploy.engine.child import answer_requests
from grasp_deploy.errors import InputError, is_out_of_memory

# Freed memory that a child keeps from the others, as a share of the GPU's. Keeping some makes small
# batches fast; large ones are slow enough for the few milliseconds that getting memory takes.
KEPT_SHARE = 1 / 32


def load(
    model: str, dtype: str, random_weights: bool, settings: dict[str, Any]
) -> tuple[Generate, int]:
    """What runs batches, and the size of the vocabulary; InputError for what stands in the way."""
    device = settings["device"]
    with memory_errors(f"{device} has no room for {model}: compare fewer models at a time"):
        loaded = load_model(model, dtype, device, random_weights, settings["seed"])
    return partial(generate, loaded), int(loaded.config.vocab_size)


def load_model(
    model: str, dtype: str, device: str, random_weights: bool, seed: int
) -> PreTrainedModel:
    """The model of a folder, or one of random weights from a config.json."""
    if random_weights:
        return random_model(Path(model), resolve_device(device), dtype, seed=seed)
    return load_weights(model, device=device, dtype=dtype)


@contextmanager
def memory_errors(told: str) -> Iterator[None]:
    """Turn a lack of memory into an InputError that says what is `told`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(told) from None


def generate(model: PreTrainedModel, prompts: Prompts, new_tokens: int) -> Timing:
    """Continue prompts by exactly `new_tokens` greedy tokens; InputError if memory runs out."""
    try:
        return _prefill_and_decode(model, prompts, new_tokens)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    finally:  # behind the handler: the error's frames hold the cache
        _give_back_memory(model.device)
    raise InputError(
        f"{len(prompts)} prompts of {len(prompts[0])} tokens do not fit in the memory that the "
        "weights leave: take smaller batches, shorter prompts, or fewer models at a time"
    )


@torch.inference_mode()
def _prefill_and_decode(model: PreTrainedModel, prompts: Prompts, new_tokens: int) -> Timing:
    tokens = torch.tensor(prompts, device=model.device)  # (B, T), then (B, 1)
    cache = empty_cache(model, len(prompts), len(prompts[0]) + new_tokens)
    began = _now(model.device)
    tokens = _next_tokens(model, tokens, cache)
    first = _now(model.device)
    for _ in range(new_tokens - 1):
        tokens = _next_tokens(model, tokens, cache)
    first, last = first - began, _now(model.device) - began
    return [first] * len(prompts), [last] * len(prompts)


def _next_tokens(model: PreTrainedModel, tokens: Tensor, cache: Cache) -> Tensor:
    """The likeliest continuation of each sequence, `(B, 1)`; the cache grows by `tokens`."""
    output = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **{CACHE: cache})
    likeliest: Tensor = output.logits.argmax(dim=-1)
    return likeliest


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _give_back_memory(device: torch.device) -> None:
    """Let the other models' children have what this one holds and does not use."""
    if device.type != "cuda":
        return
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if unused > KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    answer_requests(throughput_answers(load))
