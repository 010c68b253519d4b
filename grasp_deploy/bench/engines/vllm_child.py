"""One vLLM engine in a child, and the time that batches take it.

The engine runs in the child's own process, step by step: scheduler and model are timed, without any
traffic between processes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from grasp_deploy.bench.engines.timing import Loaded, Prompts, Timing, throughput_answers
from grasp_deploy.engine.child import answer_requests
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.errors import InputError


def load(model: str, dtype: str, random_weights: bool, settings: dict[str, Any]) -> Loaded:
    """Start the engine; InputError for what vLLM refuses."""
    from vllm import LLM

    try:
        llm = LLM(**engine_arguments(model, dtype, random_weights, settings))
    except (ValueError, torch.OutOfMemoryError) as error:
        raise InputError(f"vLLM cannot start: {' '.join(str(error).split())}") from error
    return partial(generate, llm.llm_engine), llm.llm_engine.model_config.get_vocab_size()


def engine_arguments(
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
        # Of no use beside the line above, but unless so much is free, vLLM does not start: and
        # the other models' engines are there already.
        "gpu_memory_utilization": 0.01,
        "max_model_len": settings["prompt_tokens"] + settings["new_tokens"],
        "max_num_seqs": max(settings["batches"]),
        "max_num_batched_tokens": max(settings["batches"]) * settings["prompt_tokens"],
        "enable_prefix_caching": False,
        "enforce_eager": settings["enforce_eager"],
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }


def generate(engine: Any, prompts: Prompts, new_tokens: int) -> Timing:
    """Continue each prompt greedily by exactly `new_tokens` tokens, with vLLM's LLMEngine."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0.0,
        max_tokens=new_tokens,
        ignore_eos=True,
        detokenize=False,
        # The engine reports a request twice: at its first token and at its last.
        output_kind=RequestOutputKind.DELTA,
        stream_interval=max(2, new_tokens),
    )
    inputs = engine.renderer.render_cmpl([TokensPrompt(prompt_token_ids=ids) for ids in prompts])
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    began = time.perf_counter()
    for index, prompt in enumerate(inputs):
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter() - began
        for output in outputs:
            first.setdefault(output.request_id, now)
            if output.finished:
                last[output.request_id] = now
    return list(first.values()), list(last.values())


if __name__ == "__main__":
    answer_requests(throughput_answers(load))
