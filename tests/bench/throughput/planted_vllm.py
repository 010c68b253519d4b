"""The vLLM throughput child, with sleeps that a test plants in the model's execution.

It also adds up the time that passes inside vLLM, so that a test can tell what passes outside.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from grasp_deploy.bench.throughput.timing import LoadedModel, throughput_answers
from grasp_deploy.bench.throughput.vllm_child import free_memory_bytes, load
from grasp_deploy.engine.child import answer_requests

planted = {"prefill_seconds": 0.0, "decode_seconds": 0.0}
inside = {"seconds": 0.0}
engines: list[Any] = []


def load_and_plant(**what: Any) -> LoadedModel:
    loaded = load(**what)
    engine = loaded.generate.args[0]  # type: ignore[attr-defined]
    engines.append(engine)
    execute = engine.model_executor.execute_model

    def execute_model(scheduled: Any, *rest: Any, **more: Any) -> Any:
        tokens = scheduled.num_scheduled_tokens
        prefill = max(tokens.values(), default=0) > 1
        time.sleep(planted["prefill_seconds" if prefill else "decode_seconds"])
        return execute(scheduled, *rest, **more)

    engine.model_executor.execute_model = execute_model
    engine.step, engine.add_request = clocked(engine.step), clocked(engine.add_request)
    return loaded


def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            inside["seconds"] += time.perf_counter() - began

    return timed


stock_answer = throughput_answers(load_and_plant, free_memory_bytes)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "plant":
            planted.update(request["planted"])
            return {"process": os.getpid()}
        case "look":
            cache = engines[0].vllm_config.cache_config
            return {
                "inside_seconds": inside["seconds"],
                "blocks": cache.num_gpu_blocks,
                "block_tokens": cache.block_size,
                "prefix_caching": cache.enable_prefix_caching,
            }
    inside["seconds"] = 0.0
    return stock_answer(request)


if __name__ == "__main__":
    answer_requests(answer)
