"""The memory child with a planted fault: a forward that allocates what no model of ours does."""

from typing import Any

import torch
from transformers import PreTrainedModel

from grasp_deploy.bench.engines import memory_child as child
from grasp_deploy.engine.child import answer_requests

BALLAST_BYTES = 32 * 2**20
load_model = child.load_model


def load_with_ballast(request: dict[str, Any]) -> PreTrainedModel:
    """The model, whose last layer holds some memory of its own while it runs."""
    model = load_model(request)
    held: list[torch.Tensor] = []
    layer = model.model.layers[-1]
    layer.register_forward_pre_hook(
        lambda *_: held.append(torch.ones(BALLAST_BYTES, dtype=torch.uint8))
    )
    layer.register_forward_hook(lambda *_: held.clear())
    return model


if __name__ == "__main__":
    child.load_model = load_with_ballast
    answer_requests(child.answer)
