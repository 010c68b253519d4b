"""Least squares from streamed sums, against a solver of its own."""

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.least_squares import Gram, NormalEquations
from grasp_deploy.pruning.objective import LossError
from tests.pruning.tiny_units import generator

INPUTS = torch.randn(50, 6, generator=generator(0))
TARGETS = torch.randn(50, 3, generator=generator(1))
WEIGHT = torch.randn(3, 6, generator=generator(2))


def normal_equations(targets: Tensor, inputs: Tensor) -> NormalEquations:
    sums = NormalEquations(targets.shape[-1], inputs.shape[-1])
    for t, y in zip(targets.split(7), inputs.split(7), strict=True):
        sums.add(t, y)
    return sums


def test_the_ridge_pulls_towards_the_weights_as_they_are() -> None:
    """The augmented problem [y; Λ^½] W'ᵀ = [t; Λ^½ W_Kᵀ], solved as it stands."""
    power = INPUTS.double().square().mean(0)
    root = (3 * 6 * power.clamp(min=power.median())).sqrt()
    rows = torch.cat([INPUTS.double(), root.diag()])
    wanted = torch.cat([TARGETS.double(), root[:, None] * WEIGHT.double().T])
    expected = torch.linalg.lstsq(rows, wanted).solution.T
    solved = normal_equations(TARGETS, INPUTS).solve(WEIGHT, ridge=3)
    torch.testing.assert_close(solved, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [1, 6, 513])
def test_sums_of_products_are_exact_in_either_dtype(inputs: int, dtype: torch.dtype) -> None:
    """Of bfloat16 too, and of an outlier a thousand times as large, beside its own size."""
    rows = torch.randn(200, inputs, generator=generator(0)).to(dtype)
    rows[:, 0] *= 1000
    gram, precision = Gram(inputs), torch.get_float32_matmul_precision()
    for part in rows.split(70):
        assert torch.equal(gram.add(part), part.float())
    rows = rows.double()
    size = rows.square().sum(0).sqrt()
    found, expected = (sums / size / size[:, None] for sums in (gram.sums, rows.T @ rows))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert torch.equal(gram.sums, gram.sums.T)
    assert torch.get_float32_matmul_precision() == precision


def test_a_precision_that_a_caller_set_by_backend_stays() -> None:
    of_backend = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = of_backend.fp32_precision
    of_backend.fp32_precision = "bf16"
    try:
        with pytest.raises(RuntimeError, match="mix"):
            torch.get_float32_matmul_precision()
        Gram(6).add(INPUTS.bfloat16())
        assert of_backend.fp32_precision == "bf16"
    finally:
        of_backend.fp32_precision = before


def test_the_error_is_the_sum_of_squares() -> None:
    expected = float((TARGETS - INPUTS @ WEIGHT.T).double().square().sum())
    sums = normal_equations(TARGETS, INPUTS)
    assert sums.error(WEIGHT) == pytest.approx(expected, rel=1e-5)
    overflown = WEIGHT.index_fill(1, torch.tensor([2]), torch.inf)
    assert not sums.error(overflown) < sums.error(WEIGHT), "it would pass for a perfect fit"


def test_inputs_that_are_always_zero_leave_the_weights_alone() -> None:
    solved = normal_equations(torch.randn(50, 3), torch.zeros(50, 6)).solve(WEIGHT, ridge=0.1)
    assert torch.equal(solved, WEIGHT.double())


@pytest.mark.parametrize("of_inputs", [True, False])
def test_what_is_no_number_is_refused(of_inputs: bool) -> None:
    inputs, targets = INPUTS.clone(), TARGETS.clone()
    (inputs if of_inputs else targets)[3, 1] = torch.inf
    with pytest.raises(LossError, match="the hidden states are not finite"):
        normal_equations(targets, inputs).solve(WEIGHT, ridge=0.1)


def test_one_huge_input_does_not_hold_the_others_still() -> None:
    """The same layer with one input a thousand times as large, and its weights as much smaller."""
    weight = WEIGHT.double()
    solved = normal_equations(TARGETS, INPUTS).solve(weight, ridge=0.1)
    scale = torch.tensor([1, 1000.0, 1, 1, 1, 1])
    scaled = normal_equations(TARGETS, INPUTS * scale).solve(weight / scale, ridge=0.1)
    change = (scaled * scale - solved).norm() / (solved - weight).norm()
    assert change < 0.02


def test_an_input_that_the_text_hardly_excites_keeps_its_weights() -> None:
    inputs = INPUTS.clone()
    inputs[:, 2] *= 1e-4
    weight = WEIGHT.double()
    moved = (normal_equations(TARGETS, inputs).solve(weight, ridge=0.1) - weight).norm(dim=0)
    assert moved[2] < 0.05 * moved[[0, 1, 3, 4, 5]].min()


def test_an_exact_fit_has_no_negative_error() -> None:
    """The error is a difference of large sums, which rounding takes below 0 in some of these."""
    for seed in range(20):
        inputs = torch.randn(64, 8, generator=generator(seed))
        weight = torch.randn(4, 8, generator=generator(seed))
        sums = NormalEquations(4, 8)
        sums.add(inputs.double() @ weight.double().T, inputs)
        assert 0 <= sums.error(weight) < 1e-6 * float(sums.target_energy)
