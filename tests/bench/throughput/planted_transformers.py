"""The transformers throughput child, with sleeps that a test plants in the model."""

import os
import time
from typing import Any

from transformers.models.llama.modeling_llama import LlamaModel

from grasp_deploy.bench.throughput.timing import throughput_answers
from grasp_deploy.bench.throughput.transformers_child import free_memory_bytes, load
from grasp_deploy.engine.child import answer_requests

planted = {"prefill_seconds": 0.0, "decode_seconds": 0.0}
stock_forward = LlamaModel.forward


def forward(self: Any, input_ids: Any = None, **rest: Any) -> Any:
    prefill = input_ids.shape[1] > 1
    time.sleep(planted["prefill_seconds" if prefill else "decode_seconds"])
    return stock_forward(self, input_ids=input_ids, **rest)


LlamaModel.forward = forward  # type: ignore[method-assign]
stock_answer = throughput_answers(load, free_memory_bytes)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "plant":
        planted.update(request["planted"])
        return {"process": os.getpid()}
    return stock_answer(request)


if __name__ == "__main__":
    answer_requests(answer)
