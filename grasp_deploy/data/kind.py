"""Texts of one kind, told by how often they use the tokens that are frequent in one of them.

What was calibrated on stands for text of its kind. How a pruned model does on other kinds is seen
on those alone, so a card says if it measured none. The text of calibration may be gone by then: the
shares of its frequent tokens travel with the plan.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

FREQUENT_TOKENS = 1_000
# Nats. With 4,096 byte-level tokens, other documents of a corpus lie 0.03 apart and few of them
# 0.1; C4, WikiText-2, stories and documentation lie 0.11 to 0.27 apart.
OTHER_KIND = 0.1


def frequent_tokens(token_ids: Tensor) -> dict[str, float]:
    """Shares of the most frequent tokens among token ids of any shape, by the token's id."""
    ids, counts = token_ids.unique(return_counts=True)
    chosen = counts.sort(descending=True, stable=True).indices[:FREQUENT_TOKENS]
    shares = counts[chosen] / token_ids.numel()
    return dict(zip(map(str, ids[chosen].tolist()), shares.tolist(), strict=True))


def kind_distance(token_ids: Tensor, frequent: Mapping[str, float]) -> float:
    """Jensen-Shannon divergence, in nats, of a text from the one that `frequent` is of.

    Over the frequent tokens, all others being one more. At most ln 2.
    """
    names, shares = torch.tensor([int(name) for name in frequent]), list(frequent.values())
    ids, counts = token_ids.unique(return_counts=True)
    place = torch.searchsorted(ids, names).clamp(max=len(ids) - 1)
    found = torch.where(ids[place] == names, counts[place], 0) / token_ids.numel()
    first, second = (
        torch.cat([part, (1 - part.sum(0, keepdim=True)).clamp(min=0)]).double()
        for part in (torch.tensor(shares), found)
    )
    middle = (first + second) / 2
    # xlogy: a token that a text lacks adds nothing.
    halves = (torch.xlogy(p, p) - torch.xlogy(p, middle) for p in (first, second))
    return float(sum(half.sum() for half in halves) / 2)


def is_other_kind(token_ids: Tensor, frequent: Mapping[str, float]) -> bool:
    """True for text of another kind than the one that `frequent` is of.

    A short text differs by chance alone, on average by 1 / 8n for each share:
    a chi-squared statistic over 8n, n being the tokens of the text.
    """
    by_chance = len(frequent) / (8 * token_ids.numel())
    return kind_distance(token_ids, frequent) - by_chance >= OTHER_KIND
