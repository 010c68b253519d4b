"""The time of a model as a line in its widths, from which the price of a unit follows.

    time = fixed + ffn · (kept share of all FFN channels) + kv · (kept share of all KV groups)

`fixed` is what no pruning saves: embeddings, norms, the head, and the engine's own work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearTime:
    """The line through the dense model's time, and how far measured shapes lie from it."""

    dense_seconds: float
    ffn_seconds: float  # of all FFN channels together
    kv_seconds: float  # of all KV groups together
    largest_error: float  # |line - measured| / measured, over the measured shapes

    @property
    def fixed_seconds(self) -> float:
        return self.dense_seconds - self.ffn_seconds - self.kv_seconds

    @property
    def has_price(self) -> bool:
        """False where noise leaves nothing fixed, or nothing that could be saved."""
        return self.fixed_seconds > 0 and self.ffn_seconds + self.kv_seconds > 0

    def seconds(self, ffn_share: float, kv_share: float) -> float:
        """Time of a model that keeps these shares of all FFN channels and of all KV groups."""
        return self.fixed_seconds + self.ffn_seconds * ffn_share + self.kv_seconds * kv_share


def fit_time(dense_seconds: float, points: Sequence[tuple[float, float, float]]) -> LinearTime:
    """Least squares on `points`: kept share of FFN channels and of KV groups, and seconds.

    The line goes through the dense model's time, which was measured beside every point. A kind of
    unit whose price would be negative, as noise can have it, costs nothing.
    """
    ffn, kv, seconds = torch.tensor(points, dtype=torch.float64).T
    removed = torch.stack([1 - ffn, 1 - kv], dim=1)
    prices = _nonnegative(removed, dense_seconds - seconds)
    line = dense_seconds - removed @ prices
    error = float(((line - seconds) / seconds).abs().max())
    return LinearTime(dense_seconds, float(prices[0]), float(prices[1]), error)


def _nonnegative(shares: Tensor, saved: Tensor) -> Tensor:
    """`(2,)` prices >= 0 that come nearest to `saved = shares @ prices`; `shares` is `(n, 2)`.

    Where the free solution has a negative price, the best one has a zero: one kind pays for all.
    """
    free = torch.linalg.lstsq(shares, saved[:, None], driver="gelsd").solution[:, 0]
    if bool((free >= 0).all()):
        return free
    alone = (shares.T @ saved / shares.square().sum(0).clamp(min=1e-30)).clamp(min=0)
    either = torch.diag(alone)
    errors = (shares @ either - saved[:, None]).square().sum(0)
    return either[:, errors.argmin()]
