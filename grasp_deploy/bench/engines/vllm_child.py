"""One vLLM engine in a child, and the time that batches take it.

The engine runs in the child's own process, step by step: scheduler and model are timed, without any
traffic between processes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from grasp_deploy.bench.engines.timing import LoadedModel, Prompts, Timing, throughput_answers
from grasp_deploy.engine.child import answer_requests
from grasp_deploy.errors import InputError


def load(engine: dict[str, Any]) -> LoadedModel:
    """Start the engine with these arguments of vLLM's LLM; InputError for what vLLM refuses."""
    from vllm import LLM

    try:
        llm = LLM(**engine)
    except (ValueError, torch.OutOfMemoryError) as error:
        raise InputError(f"vLLM cannot start: {' '.join(str(error).split())}") from error
    return LoadedModel(
        generate=partial(generate, llm.llm_engine),
        vocab_size=llm.llm_engine.model_config.get_vocab_size(),
        gpu=torch.cuda.current_device() if torch.cuda.is_available() else None,
    )


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
