"""Experts as units: a gated router, and the loss of a layer that must do without one of them.

A router gives each token the `k` experts of its largest logits. Where experts are removed, it
chooses among those that are left, as the router of the cut model does.
"""

from typing import Any

import torch
from torch import Tensor, nn


def routed(
    router: Any, logits: Tensor, gates: Tensor, *, all_learn: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """What a router returns under `(E,)` gates: `(T, E)` logits, weights and indices of experts.

    Experts whose gate is 0 are out of the choice, with logits of minus infinity. The weights of
    others are multiplied by their gates. If `all_learn` and the gates take a gradient, removed
    experts that a token would otherwise take follow with the weight 0, whose gradient is what they
    would add.
    """
    kept = gates.detach() != 0
    masked = logits.masked_fill(~kept, -torch.inf)
    weights, chosen = _choice(router, masked)
    weights = weights * gates[chosen]
    learns = all_learn and gates.requires_grad and torch.is_grad_enabled()
    if learns and not bool(kept.all()):
        of_all, wanted = _choice(router, logits)
        straight = torch.where(kept, 0.0, gates - gates.detach())
        weights = torch.cat([weights, of_all * straight[wanted]], dim=1)
        chosen = torch.cat([chosen, wanted], dim=1)
    return masked, weights.to(logits.dtype), chosen


def _choice(router: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
    """`(T, k)` float32 weights and indices of the experts with the largest logits."""
    weights, chosen = logits.softmax(-1, dtype=torch.float32).topk(router.top_k, dim=-1)
    if router.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(logits.dtype).float(), chosen  # rounded as the router rounds them


@torch.no_grad()
def removal_losses(router: Any, experts: nn.Module, hidden: Tensor, gradient: Tensor) -> Tensor:
    """`(E,)` float64 sums over tokens of `½ (g·Δ)²`, the loss of removing each expert, in nats.

    `hidden` are the `(T, d)` inputs of a gated router, `g` the `(T, d)` gradients of the summed
    loss at the layer's output, and `Δ` is how removal changes that output: the next best expert
    takes the place, and the weights move. It is the optimal brain surgeon's loss of a block that
    nothing else makes up for, in the same unit as those of other units.
    """
    logits, *_ = router(hidden)  # minus infinity for experts that are gone
    taken, left = router.top_k, int(logits[0].isfinite().sum())
    chances = logits.softmax(-1, dtype=torch.float32).double()
    rest = (1 - chances).clamp_min(1e-6)  # what the softmax divides by once an expert is gone
    top, ranked = chances.topk(min(taken + 1, left), dim=-1)
    one = torch.ones_like(ranked[:, :1], dtype=hidden.dtype)
    effects = [(experts(hidden, e[:, None], one) * gradient).sum(-1) for e in ranked.unbind(1)]
    effect = torch.stack(effects, 1).double()  # (T, k + 1) of each expert's output on the loss

    def output(places: list[int]) -> Tensor:
        weights = top[:, places]
        if router.norm_topk_prob:
            weights = weights / weights.sum(1, keepdim=True)
        return (weights * effect[:, places]).sum(1)

    before = output([*range(taken)])
    change = before[:, None] * chances / rest  # of an expert that a token does not take
    change *= not router.norm_topk_prob
    for place in range(taken):
        after = output([other for other in range(top.shape[1]) if other != place])
        expert = ranked[:, place, None]
        after = after[:, None] if router.norm_topk_prob else after[:, None] / rest.gather(1, expert)
        change.scatter_(1, expert, after - before[:, None])
    return change.square().sum(0) / 2
