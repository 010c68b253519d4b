"""Answers of a throughput child, whichever engine it holds: load a model, then time batches.

A batch holds random prompts of one length, each continued by a fixed number of tokens. All are
handed over before the engine's first step, and the clock starts with the first of them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

Prompts = list[list[int]]
Timing = tuple[list[float], list[float]]  # seconds until each request's first and last token
Generate = Callable[[Prompts, int], Timing]  # prompts, new tokens of each
Loaded = tuple[Generate, int]  # what runs a batch, and the size of its vocabulary


def throughput_answers(load: Callable[..., Loaded]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The answers of a child, whose first request loads a model; every further one is a batch.

    The keys of a request are the arguments of `load`, then of `measure`.
    """
    loaded: list[Loaded] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if loaded:
            return measure(loaded[0], **request)
        loaded.append(load(**request))
        return {}

    return answer


def measure(
    loaded: Loaded, batch: int, prompt_tokens: int, new_tokens: int, seed: int
) -> dict[str, float | None]:
    """Run one batch; gives one sample of a throughput record.

    `seconds` until the last token, `ttft_seconds` (to a request's first token) and `tpot_seconds`
    (per token after the first; None if there is but one) as means over the requests.
    """
    generate, vocab_size = loaded
    first, last = generate(random_prompts(batch, prompt_tokens, vocab_size, seed), new_tokens)
    assert len(first) == len(last) == batch, "every request was answered"
    decoding = statistics.fmean(last) - statistics.fmean(first)
    return {
        "seconds": max(last),
        "ttft_seconds": statistics.fmean(first),
        "tpot_seconds": decoding / (new_tokens - 1) if new_tokens > 1 else None,
    }


def random_prompts(batch: int, prompt_tokens: int, vocab_size: int, seed: int) -> Prompts:
    """`batch` lists of `prompt_tokens` token ids; the same seed gives the same ones."""
    generator = random.Random(seed)
    return [generator.choices(range(vocab_size), k=prompt_tokens) for _ in range(batch)]
