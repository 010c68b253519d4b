"""One engine in a child, vLLM's or transformers', and the time that batches take it.

A batch holds random prompts of one length, each continued greedily by a fixed number of tokens. All
are handed over before the engine's first step, and the clock starts with the first of them.

vLLM's engine runs in the child's own process: scheduler and model are timed, without any traffic
between processes. With transformers a prefill makes the logits of the last position
only. Its loop has a KV cache that was allocated before, as a server's is: transformers' dynamic
cache copies all of it at each step, and its static one attends to positions that are still empty.
"""

import random
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from grasp_deploy.checkpoint.cache import CACHE, empty_cache
from grasp_deploy.checkpoint.read.loading import load, random_model, resolve_device
from grasp_deploy.engine.child import answer_requests
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.errors import InputError, is_out_of_memory
from grasp_deploy.stats.wording import counted

Prompts = list[list[int]]
Timing = tuple[list[float], list[float]]  # seconds until each request's first and last token
Generate = Callable[[Prompts, int], Timing]  # prompts, new tokens of each
Loaded = tuple[Generate, int]  # what runs a batch, and the size of its vocabulary
# Freed memory that a child keeps from the others, as a share of the GPU's. Keeping some makes small
# batches fast; large ones are slow enough for the few milliseconds that getting memory takes.
KEPT_SHARE = 1 / 32
loaded: list[Loaded] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request: the first one loads the engine, every further one is one `measure`."""
    if loaded:
        return measure(loaded[0], **request)
    loaders = {"vllm": load_vllm, "transformers": load_transformers}
    loaded.append(loaders[request["settings"]["engine"]](**request))
    return {}


def measure(
    engine: Loaded, batch: int, prompt_tokens: int, new_tokens: int, seed: int
) -> dict[str, float | None]:
    """Run one batch and return one sample of a throughput record.

    `seconds` until the last token, `ttft_seconds` (to a request's first token) and `tpot_seconds`
    (per token after the first; None if there is but one) as means over the requests.
    """
    generate, vocab_size = engine
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


def load_vllm(model: str, dtype: str, random_weights: bool, settings: dict[str, Any]) -> Loaded:
    """Start the engine; InputError for what vLLM refuses."""
    from vllm import LLM

    try:
        llm = LLM(**vllm_arguments(model, dtype, random_weights, settings))
    except (ValueError, torch.OutOfMemoryError) as error:
        raise InputError(f"vLLM cannot start: {' '.join(str(error).split())}") from error
    return partial(vllm_batch, llm), llm.llm_engine.model_config.get_vocab_size()


def vllm_arguments(
    model: str, dtype: str, random_weights: bool, settings: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of vLLM's LLM.

    vLLM gets room for whole batches, and one step may prefill the whole of the largest batch. With
    its own limit the first requests would decode while the last ones wait for their prefill: TTFT
    and TPOT would mix both phases.
    """
    return {
        **FORMAT,
        **({"load_format": "dummy"} if random_weights else {}),
        "model": model,
        "dtype": dtype,
        "kv_cache_memory_bytes": settings["kv_memory_bytes"],
        # The line above overrides it, but vLLM refuses to start unless this share is free, and
        # the other models' engines take memory already.
        "gpu_memory_utilization": 0.01,
        "max_model_len": settings["prompt_tokens"] + settings["new_tokens"],
        "max_num_seqs": max(settings["batches"]),
        "max_num_batched_tokens": max(settings["batches"]) * settings["prompt_tokens"],
        "enable_prefix_caching": False,
        "enforce_eager": settings["enforce_eager"],
        "skip_tokenizer_init": True,
        "disable_log_stats": False,  # for the times of each request
    }


def vllm_batch(llm: Any, prompts: Prompts, new_tokens: int) -> Timing:
    """Continue each prompt by exactly `new_tokens` tokens; the times are vLLM's own."""
    from vllm import SamplingParams, TokensPrompt

    inputs = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
    greedy = SamplingParams(
        temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
    )
    times = [output.metrics for output in llm.generate(inputs, greedy, use_tqdm=False)]
    began = min(one.arrival_time for one in times)
    first = [one.arrival_time - began + one.first_token_latency for one in times]
    decoding = [one.last_token_ts - one.first_token_ts for one in times]
    return first, [sum(pair) for pair in zip(first, decoding, strict=True)]


def load_transformers(
    model: str, dtype: str, random_weights: bool, settings: dict[str, Any]
) -> Loaded:
    """Load the model; InputError if its folder is broken or memory does not suffice."""
    device = settings["device"]
    with memory_errors(f"{device} has no room for {model}: compare fewer models at a time"):
        made = load_model(model, dtype, device, random_weights, settings["seed"])
    return partial(transformers_batch, made), int(made.config.vocab_size)


def load_model(
    model: str, dtype: str, device: str, random_weights: bool, seed: int
) -> PreTrainedModel:
    """The model of a folder, or one of random weights from a config.json."""
    if random_weights:
        return random_model(Path(model), resolve_device(device), dtype, seed=seed)
    return load(model, device=device, dtype=dtype)


@contextmanager
def memory_errors(told: str) -> Iterator[None]:
    """Turn a lack of memory into an InputError with the message `told`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold the tensors that filled it
        raise InputError(told) from None


def transformers_batch(model: PreTrainedModel, prompts: Prompts, new_tokens: int) -> Timing:
    """Continue prompts by exactly `new_tokens` tokens; InputError if memory runs out.

    Afterwards a large unused reserve of this child goes back to the GPU, for the other models.
    """
    told = (
        f"{counted(len(prompts), 'prompt')} of {len(prompts[0])} tokens do not fit in the memory "
        "that the weights leave: take smaller batches, shorter prompts, or fewer models at a time"
    )
    device = model.device
    try:
        with memory_errors(told):
            return _prefill_and_decode(model, prompts, new_tokens)
    finally:
        if device.type == "cuda":
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            if unused > KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory:
                torch.cuda.empty_cache()


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


if __name__ == "__main__":
    answer_requests(answer)
