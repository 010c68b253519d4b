"""Running moments against two passes over all tokens at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grasp_deploy.pruning.criteria.moments import Moments, input_moments
from grasp_deploy.pruning.hooks import on_inputs
from grasp_deploy.pruning.layout import output_projections
from tests.pruning.criteria.cases import SEQUENCES, TEXT
from tests.pruning.tiny_units import frozen, hooks_of

CPU = torch.device("cpu")


def assert_two_pass(moments: Moments, rows: Tensor, rtol: float = 1e-6) -> None:
    rows = rows.double()
    scale = float(rows.abs().max()) + 1e-30
    assert moments.tokens == len(rows)
    torch.testing.assert_close(moments.mean, rows.mean(0), rtol=rtol, atol=rtol * scale)
    variance = rows.var(0) if len(rows) > 1 else torch.zeros(rows.shape[1]).double()
    torch.testing.assert_close(moments.variance, variance, rtol=rtol, atol=1e-12 * scale**2)
    torch.testing.assert_close(moments.norm, rows.norm(dim=0), rtol=rtol, atol=1e-6 * scale)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.sampled_from((0.0, 1.0, 1e4)),
    st.integers(0, 1000),
)
def test_batches_of_any_sizes_give_the_moments_of_all(
    sizes: list[int], mean: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = mean + torch.randn(sum(sizes), 3, generator=generator)
    moments = Moments(3, CPU)
    for start, end in pairwise([0, *torch.tensor(sizes).cumsum(0).tolist()]):
        moments.add(rows[start:end])
    assert_two_pass(moments, rows)


def test_a_constant_fluctuates_by_nothing_and_a_large_mean_hides_nothing() -> None:
    rows = torch.full((64, 2), 1000.0)
    rows[:, 1] += torch.tensor([0.0, 0.25]).repeat(32)
    moments = Moments(2, CPU)
    for part in rows.split(10):
        moments.add(part)
    assert moments.variance[0] == 0
    assert float(moments.variance[1]) == pytest.approx(0.125**2 * 64 / 63, rel=1e-9)


def test_nothing_grows_with_the_tokens() -> None:
    moments = Moments(3, CPU)
    for _ in range(50):
        moments.add(torch.randn(2, 7, 3))
    tensors = [value for value in vars(moments).values() if isinstance(value, Tensor)]
    assert all(tensor.untyped_storage().nbytes() == 3 * 8 for tensor in tensors)
    assert moments.tokens == 50 * 14


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_inputs_are_those_that_its_linear_layers_get(dtype: torch.dtype) -> None:
    model = frozen(dtype=dtype)
    linears = list(output_projections(model).values())
    seen: list[list[Tensor]] = [[] for _ in linears]

    def keep(index: int, x: Tensor) -> None:
        seen[index].append(x.flatten(0, 1).float())

    with on_inputs(linears, keep):
        from_text = input_moments(model, linears, TEXT)
    for moments, rows in zip(from_text, seen, strict=True):
        assert_two_pass(moments, torch.cat(rows), rtol=1e-5)
    assert [len(torch.cat(rows)) for rows in seen] == [SEQUENCES.numel()] * 6
    assert hooks_of(model) == 0
