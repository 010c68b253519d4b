"""Least squares of a linear layer from sums over tokens.

The products of a batch are float32, which CPUs multiply twice as fast as float64, and consumer
GPUs 64 times as fast. They are added up in float64. So the error of a sum does not grow with the
text: it stays far below the ridge, also for inputs a thousand times as large as the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.team import ALONE, Team

PARTS = 4  # of the inputs: of 16 blocks of a symmetric matrix, 10 are multiplied


class Gram:
    """`Σ y yᵀ` over all tokens of a linear layer's inputs `y`."""

    def __init__(self, inputs: int, device: torch.device | str = "cpu") -> None:
        self._sums = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.tokens = 0

    def add(self, inputs: Tensor) -> Tensor:
        """Add `(..., inputs)` inputs of any dtype; returns them as `(tokens, inputs)` float32."""
        rows = inputs.flatten(end_dim=-2).float()
        with _exact_products(inputs.dtype):
            for part in torch.arange(len(self._sums)).chunk(PARTS):
                first, end = int(part[0]), int(part[-1]) + 1
                self._sums[first:, first:end] += rows[:, first:].T @ rows[:, first:end]
        self.tokens += len(rows)
        return rows

    @property
    def sums(self) -> Tensor:
        """`(inputs, inputs)` float64; what lies above the diagonal is as below it by now."""
        above = self._sums.tril(-1).T
        return self._sums.tril_().add_(above)


@contextmanager
def _exact_products(dtype: torch.dtype) -> Iterator[None]:
    """Multiply float32 tensors whose values are of `dtype`, as fast as a CPU can.

    Products of two bfloat16 values are exact in float32. So a CPU that multiplies bfloat16
    natively may take them as such: only the order of the sums changes.
    """
    before = None
    with suppress(RuntimeError):  # torch's newer settings, which a caller may use, cannot be mixed
        before = torch.get_float32_matmul_precision()
    if before is None or dtype != torch.bfloat16:
        yield
        return
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:  # else float32 products of anything later would be rounded
        torch.set_float32_matmul_precision(before)


class NormalEquations:
    """`Σ t yᵀ`, `Σ y yᵀ` and `Σ |t|²` over all tokens, for targets `t` and inputs `y`."""

    def __init__(self, outputs: int, inputs: int, device: torch.device | str = "cpu") -> None:
        self.cross = torch.zeros(outputs, inputs, dtype=torch.float64, device=device)
        self.gram = Gram(inputs, device)
        self.target_energy = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, targets: Tensor, inputs: Tensor) -> None:
        """Add `(..., outputs)` targets and the `(..., inputs)` inputs that should give them."""
        t, y = targets.flatten(end_dim=-2).float(), self.gram.add(inputs)
        self.cross += t.T @ y
        self.target_energy += t.square().sum(dtype=torch.float64)

    def add_up(self, team: Team) -> None:
        """Sum over all processes; each then keeps the cross products of its own rows of outputs."""
        tokens = self.gram.sums.new_tensor(self.gram.tokens)
        team.add_up(self.gram.sums, self.cross, self.target_energy, tokens)
        self.gram.tokens = int(tokens)
        self.cross = team.part(self.cross)

    def solve(self, weight: Tensor, ridge: float) -> Tensor:
        """`(outputs, inputs)` float64 weights of least error, pulled towards `weight`.

        Rows are independent of each other: after `add_up` they are this process's. `weight` counts
        like `ridge` tokens for each input, tokens in which an input has its mean power `p`.

            W' = (Σ t yᵀ + W Λ) (Σ y yᵀ + Λ)⁻¹,   Λ = ridge · inputs · max(p, median of p)

        Raises LossError if inputs or targets are not finite.
        """
        power = finite_power(self.gram.sums)
        if not bool(self.target_energy.isfinite()):
            raise LossError(f"the hidden states are not finite: {OVERFLOW}")
        if not bool(power.any()):
            return weight.double()
        counted = ridge * len(power) / self.gram.tokens
        strength = counted * power.clamp(min=float(power.median())) + 1e-12 * power.mean()
        regular = self.gram.sums.clone()
        regular.diagonal().add_(strength)
        target = self.cross + strength * weight.double()
        return torch.cholesky_solve(target.T, torch.linalg.cholesky(regular)).T

    def error(self, weight: Tensor, team: Team = ALONE) -> float:
        """`Σ |t - W y|²` over all outputs, of this process's `(outputs, inputs)` weights."""
        weight = weight.double()
        explained = (weight * (weight @ self.gram.sums - 2 * self.cross)).sum()
        team.add_up(explained)
        error = self.target_energy + explained
        return float(error.clamp_min(0))  # the difference of large sums may miss 0 by a little


def finite_power(gram: Tensor) -> Tensor:
    """`(inputs,)` diagonal of a Gram matrix; LossError if it is not finite."""
    power = gram.diagonal()
    if not bool(power.isfinite().all()):
        raise LossError(f"the hidden states are not finite: {OVERFLOW}")
    return power
