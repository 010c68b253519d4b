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

from grasp_deploy.checkpoint.read.loading import resolve_device

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
    """The answers of a child: to "free_memory", then once to "load", then to any "measure".

    The other keys of a request, beside `do`, are the arguments of the function that answers it.
    """
    loaded: list[LoadedModel] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        what = {key: value for key, value in request.items() if key != "do"}
        match request["do"]:
            case "free_memory":
                return {"free_memory_bytes": free_memory_bytes(**what)}
            case "load":
                loaded.append(load(**what))
                return {}
            case _:
                return measure(loaded[0], **what)

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


def free_memory_bytes(device: str) -> int | None:
    """Free memory of the GPU that is meant; None if it is the CPU."""
    where = resolve_device(device)
    return torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else None


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
