"""Answers of a throughput child, whichever engine it holds: load a model, then time batches.

A batch holds random prompts of one length, each continued by a fixed number of tokens. All are
handed over before the engine's first step, and the clock starts with the first of them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml
import torch

Prompts = list[list[int]]
Timing = tuple[list[float], list[float]]  # seconds until each request's first and last token


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready: what runs a batch, and what batches for it are made of."""

    generate: Callable[[Prompts, int], Timing]  # prompts, new tokens of each
    vocab_size: int
    gpu: int | None  # its number in PyTorch; None on a CPU


def throughput_answers(
    load: Callable[..., LoadedModel],
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The answers of a child, whose first request loads a model; every further one is a batch.

    The keys of a request are the arguments of `load`, then of `measure`.
    """
    loaded: list[LoadedModel] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if loaded:
            return measure(loaded[0], **request)
        loaded.append(load(**request))
        return {}

    return answer


def measure(
    model: LoadedModel, batch: int, prompt_tokens: int, new_tokens: int, seed: int
) -> dict[str, float | None]:
    """Run one batch; gives one sample of a throughput record.

    `seconds` until the last token, `ttft_seconds` (to a request's first token) and `tpot_seconds`
    (per token after the first; None if there is but one) as means over the requests, and `joules`.
    """
    prompts = random_prompts(batch, prompt_tokens, model.vocab_size, seed)
    before = read_joules(model.gpu)
    first, last = model.generate(prompts, new_tokens)
    after = read_joules(model.gpu)
    assert len(first) == len(last) == batch, "every request was answered"
    decoding = statistics.fmean(last) - statistics.fmean(first)
    return {
        "seconds": max(last),
        "ttft_seconds": statistics.fmean(first),
        "tpot_seconds": decoding / (new_tokens - 1) if new_tokens > 1 else None,
        "joules": None if before is None or after is None else after - before,
    }


def random_prompts(batch: int, prompt_tokens: int, vocab_size: int, seed: int) -> Prompts:
    """`batch` lists of `prompt_tokens` token ids; the same seed gives the same ones."""
    generator = random.Random(seed)
    return [generator.choices(range(vocab_size), k=prompt_tokens) for _ in range(batch)]


def read_joules(gpu: int | None) -> float | None:
    """Joules that the whole GPU has used since its driver was loaded; None without a counter.

    The counter moves every few dozen milliseconds: only what takes a second is measured well.
    """
    if gpu is None:
        return None
    # PyTorch's numbers change with the GPUs that are hidden from the process.
    uuid = f"GPU-{torch.cuda.get_device_properties(gpu).uuid}"
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except pynvml.NVMLError:  # older than Volta, or part of a GPU
        return None
