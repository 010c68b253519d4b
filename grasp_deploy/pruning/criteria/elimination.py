"""Removing a layer's units one by one, the cheapest next, each in the light of those that are gone.

Of the inverse `P` of the inputs' second moments, the block of a unit is the inverse of what all
others leave of it. Taking the unit away is a step of block Cholesky with that block as the pivot:

    S_j = (P_jj)⁻¹,     P ← P - P_:j (P_jj)⁻¹ P_j:

The cheapest unit is the next pivot. Pivots are gathered in panels, as in LAPACK: within a panel
only the columns and diagonal blocks that are looked at are brought up to date, the rest behind it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grasp_deploy.pruning.objective import OVERFLOW, LossError

RIDGE = 0.01  # of each input's own power
PANEL_COLUMNS = 64


def losses_one_by_one(gram: Tensor, moments: Tensor, ridge: float = RIDGE) -> Tensor:
    """`(n,)` float64 losses `½ tr(S C)` of units, each given that all cheaper ones are removed.

    `gram` holds the `(n·w, n·w)` float64 mean products of the inputs, `moments` the `(n, w, w)`
    second moments `C` of their gradients. A unit is never cheaper than one that went before it. The
    share `ridge` of each input's power counts as noise that nothing explains: its own, so that an
    input a thousand times as large as the others, as real models have, makes no difference to them.
    Raises LossError if the Gram matrix is not finite.
    """
    width = moments.shape[-1]
    power = gram.diagonal()
    if not bool(power.isfinite().all()):
        raise LossError(f"the hidden states are not finite: {OVERFLOW}")
    losses = gram.new_zeros(len(moments))
    left = power.view(-1, width).any(1).nonzero().flatten()  # what is removed already costs nothing
    if not len(left):
        return losses
    inverse = _inverse(gram, _columns(left, width), ridge)
    dearest = losses.new_zeros(())
    while len(left):
        pivots = min(len(left), max(1, PANEL_COLUMNS // width))
        removed, costs, factor = _panel(inverse, moments[left], pivots)
        costs = torch.maximum(costs.cummax(0).values, dearest)
        losses[left[removed]], dearest = costs, costs[-1]
        stays = torch.ones_like(left, dtype=torch.bool).index_fill(0, removed, False)
        rows = _columns(stays.nonzero().flatten(), width)
        inverse = inverse[rows][:, rows] - factor[rows] @ factor[rows].T
        left = left[stays]
    return losses


def _panel(inverse: Tensor, moments: Tensor, pivots: int) -> tuple[Tensor, Tensor, Tensor]:
    """The next units to go, `(p,)`, their losses, `(p,)`, and the `(n·w, p·w)` factor `F`.

    Behind them the inverse is `inverse - F Fᵀ`.
    """
    units, width = len(moments), moments.shape[-1]
    blocks = inverse.view(units, width, units, width).diagonal(dim1=0, dim2=2)
    blocks = blocks.permute(2, 0, 1).clone()  # (n, w, w), kept up to date
    factor = inverse.new_zeros(len(inverse), pivots * width)
    gone = torch.zeros(units, dtype=torch.bool, device=inverse.device)
    removed, costs = [], []
    for pivot in range(pivots):
        losses = (_inverses(blocks) * moments).sum((1, 2)) / 2
        unit = losses.masked_fill(gone, torch.inf).argmin()
        removed.append(unit)
        costs.append(losses[unit])
        columns = _columns(unit[None], width)
        known = factor[:, : pivot * width]
        column = inverse[:, columns] - known @ known[columns].T
        root = torch.linalg.cholesky(blocks[unit])
        part = torch.linalg.solve_triangular(root.mT, column, upper=True, left=False)
        factor[:, pivot * width : (pivot + 1) * width] = part
        of_unit = part.view(units, width, width)
        blocks -= of_unit @ of_unit.mT
        gone[unit] = True
        blocks[unit] = torch.eye(width, dtype=blocks.dtype, device=blocks.device)
    return torch.stack(removed), torch.stack(costs), factor


def _inverse(gram: Tensor, columns: Tensor, ridge: float) -> Tensor:
    """Inverse of some columns' second moments, a share of each one's power added to it."""
    regular = gram[columns][:, columns]
    power = regular.diagonal()
    regular.diagonal().add_(ridge * power + 1e-12 * power.mean())  # a column may be always 0
    return torch.cholesky_inverse(torch.linalg.cholesky(regular))


def _inverses(blocks: Tensor) -> Tensor:
    return blocks.reciprocal() if blocks.shape[-1] == 1 else torch.linalg.inv(blocks)


def _columns(units: Tensor, width: int) -> Tensor:
    """Indices of the columns of some units, `width` each."""
    return (units[:, None] * width + torch.arange(width, device=units.device)).flatten()
