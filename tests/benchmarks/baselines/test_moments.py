"""Running moments against two passes over all tokens at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.baselines.moments import Moments
from tests.pruning.tiny_units import generator


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.sampled_from((0.0, 1.0, 1e4)),
    st.integers(0, 1000),
)
def test_batches_of_any_sizes_give_the_moments_of_all(
    sizes: list[int], mean: float, seed: int
) -> None:
    rows = mean + torch.randn(sum(sizes), 3, generator=generator(seed))
    moments = Moments(3, torch.device("cpu"))
    for part in rows.split(sizes):
        moments.add(part)
    rows = rows.double()
    scale = float(rows.abs().max())
    variance = rows.var(0) if len(rows) > 1 else torch.zeros(3).double()
    assert moments.tokens == len(rows)
    torch.testing.assert_close(moments.mean, rows.mean(0), rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(moments.variance, variance, rtol=1e-6, atol=1e-12 * scale**2)
    torch.testing.assert_close(moments.norm, rows.norm(dim=0), rtol=1e-6, atol=1e-6 * scale)
    tensors = [value for value in vars(moments).values() if isinstance(value, Tensor)]
    assert all(tensor.shape == (3,) for tensor in tensors)  # nothing grows with the tokens


def test_a_constant_fluctuates_by_nothing_and_a_large_mean_hides_nothing() -> None:
    rows = torch.full((64, 2), 1000.0)
    rows[:, 1] += torch.tensor([0.0, 0.25]).repeat(32)
    moments = Moments(2, torch.device("cpu"))
    for part in rows.split(10):
        moments.add(part)
    assert moments.variance[0] == 0
    assert float(moments.variance[1]) == pytest.approx(0.125**2 * 64 / 63, rel=1e-9)
