"""REAP's score of experts (Lasby et al. 2025): how much a router takes of an expert's output.

The mean, over the tokens that take the expert, of its weight times the norm of its output. The
paper ranks the experts of a layer, and removes as many of each layer.
"""

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.layout import device_of, half_of, installed, routers


@torch.no_grad()
def reap(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """`(N,)` float64 means of weight times norm of an expert's output; 0 for KV groups."""
    starts, size = budget.units.starts, budget.units.size
    sums, counts = torch.zeros(2, size, dtype=torch.float64, device=device_of(model))
    busy: list[int] = []  # not empty while an expert is called by itself

    def add(segment: int, experts: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        if busy:
            return
        busy.append(segment)
        hidden, chosen, weights = inputs
        for expert, weight in zip(chosen.split(1, 1), weights.split(1, 1), strict=True):
            norms = experts(hidden, expert, weight).norm(dim=1).double()
            sums.index_add_(0, starts[segment] + expert.flatten(), norms)
            counts.index_add_(0, starts[segment] + expert.flatten(), torch.ones_like(norms))
        busy.clear()

    hooks = (
        half_of(model, s).experts.register_forward_pre_hook(  # type: ignore[union-attr]
            lambda experts, inputs, s=s: add(s, experts, inputs)
        )
        for s in routers(model)
    )
    with installed(hooks):
        for batch in text.batches(model):
            model.model(input_ids=batch, use_cache=False)  # type: ignore[operator]
    return sums / counts.clamp_min(1)
