"""Answers of a throughput child, whichever engine it holds: load a model, then time batches.

A batch holds random prompts of one length, each continued by a fixed number of tokens. All are
handed over before the engine's first step, and the clock starts with the first of them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grasp_deploy.bench.throughput.energy import joules_between, read_joules

Prompts = list[list[int]]


@dataclass(frozen=True)
class Timing:
    """When the tokens of a batch came, in seconds since it was handed over."""

    seconds: float  # until all was done
    first_seconds: list[float]  # each request's first token
    last_seconds: list[float]  # each request's last one


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready: what runs a batch, and what batches for it are made of."""

    generate: Callable[[Prompts, int], Timing]  # prompts, new tokens of each
    vocab_size: int
    gpu_uuid: str | None  # None on a CPU


def throughput_answers(
    load: Callable[..., LoadedModel], free_memory_bytes: Callable[..., int | None]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The answers of a child: to "free_memory", then once to "load", then to any "measure".

    The other keys of a request, beside `do`, are the arguments of the function that answers it.
    Free memory is that of the GPU; None says that the engine will use a CPU.
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
    joules = read_joules(model.gpu_uuid)
    timing = model.generate(prompts, new_tokens)
    joules = joules_between(joules, read_joules(model.gpu_uuid))
    first, last = timing.first_seconds, timing.last_seconds
    assert len(first) == len(last) == batch, "every request was answered"
    decoding = statistics.fmean(last) - statistics.fmean(first)
    return {
        "seconds": timing.seconds,
        "ttft_seconds": statistics.fmean(first),
        "tpot_seconds": decoding / (new_tokens - 1) if new_tokens > 1 else None,
        "joules": joules,
    }


def random_prompts(batch: int, prompt_tokens: int, vocab_size: int, seed: int) -> Prompts:
    """`batch` lists of `prompt_tokens` token ids; the same seed gives the same ones."""
    generator = random.Random(seed)
    return [generator.choices(range(vocab_size), k=prompt_tokens) for _ in range(batch)]


def quiet_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would keep the threads of an idle child spinning.

    GNU's OpenMP stops after a few milliseconds by default. Intel's takes 200, at the next child's
    expense; vLLM gives its own workers 5.
    """
    quiet = {"KMP_BLOCKTIME": "5", **environment}
    if quiet.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        del quiet["OMP_WAIT_POLICY"]
    return quiet
