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


def losses_one_by_one(
    gram: Tensor, moments: Tensor, removable: Tensor | None = None, ridge: float = RIDGE
) -> Tensor:
    """`(n,)` float64 losses `½ tr(S C)` of units, each given that all cheaper ones are removed.

    `gram` holds the `(n·w, n·w)` float64 mean products of the inputs, `moments` the `(n, w, w)`
    second moments `C` of their gradients. A unit is never cheaper than one that went before it.
    What a `(n,)` mask says is not removable never goes, and is as dear as the dearest. The share
    `ridge` of each input's power counts as noise that nothing explains: its own, so that an input a
    thousand times as large as the others, as real models have, makes no difference to them.
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
    stays_anyway = torch.zeros_like(left, dtype=torch.bool)
    if removable is not None:
        stays_anyway = ~removable.to(left.device)[left]
    to_go = int((~stays_anyway).sum())
    inverse = _inverse(gram, _columns(left, width), ridge)
    dearest = losses.new_zeros(())
    while to_go:
        pivots = min(to_go, max(1, PANEL_COLUMNS // width))
        removed, costs, factor = _panel(inverse, moments[left], stays_anyway, pivots)
        costs = torch.maximum(costs.cummax(0).values, dearest)
        losses[left[removed]], dearest = costs, costs[-1]
        stays = torch.ones_like(stays_anyway).index_fill(0, removed, False)
        rows = _columns(stays.nonzero().flatten(), width)
        inverse = torch.addmm(inverse[rows][:, rows], factor[rows], factor[rows].T, alpha=-1)
        left, stays_anyway, to_go = left[stays], stays_anyway[stays], to_go - pivots
    return losses.index_fill(0, left, float(dearest))


def _panel(
    inverse: Tensor, moments: Tensor, closed: Tensor, pivots: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The next units to go, `(p,)`, their losses, `(p,)`, and the `(n·w, p·w)` factor `F`.

    Behind them the inverse is `inverse - F Fᵀ`. None of the `(n,)` `closed` units goes. No step
    waits for the device: there is one for every unit of every layer.
    """
    units, width = len(moments), moments.shape[-1]
    blocks = inverse.view(units, width, units, width).diagonal(dim1=0, dim2=2)
    blocks = blocks.permute(2, 0, 1).clone()  # (n, w, w), kept up to date
    one = torch.eye(width, dtype=blocks.dtype, device=blocks.device)[None]
    factor = inverse.new_zeros(len(inverse), pivots * width)
    removed, costs = [], []
    for pivot in range(pivots):
        losses = (_inverses(blocks) * moments).sum((1, 2)) / 2
        cost, unit = losses.masked_fill(closed, torch.inf).min(0, keepdim=True)
        removed.append(unit)
        costs.append(cost)
        columns = _columns(unit, width)
        known = factor[:, : pivot * width]
        column = inverse[:, columns] - known @ known[columns].T
        part = _over_root(column, blocks[unit][0])
        factor[:, pivot * width : (pivot + 1) * width] = part
        of_unit = part.view(units, width, width)
        blocks -= of_unit @ of_unit.mT
        blocks.index_copy_(0, unit, one)
        closed = closed.index_fill(0, unit, True)
    return torch.cat(removed), torch.cat(costs), factor


def _inverse(gram: Tensor, columns: Tensor, ridge: float) -> Tensor:
    """Inverse of some columns' second moments, a share of each one's power added to it."""
    regular = gram[columns][:, columns]
    power = regular.diagonal()
    regular.diagonal().add_(ridge * power + 1e-12 * power.mean())  # a column may be always 0
    return torch.cholesky_inverse(torch.linalg.cholesky(regular))


def _inverses(blocks: Tensor) -> Tensor:
    if blocks.shape[-1] == 1:
        return blocks.reciprocal()
    return torch.linalg.inv_ex(blocks).inverse


def _over_root(column: Tensor, block: Tensor) -> Tensor:
    """`column (Lᵀ)⁻¹`, where `L Lᵀ` is the block."""
    if len(block) == 1:
        return column / block.sqrt()
    root = torch.linalg.cholesky_ex(block).L
    return torch.linalg.solve_triangular(root.mT, column, upper=True, left=False)


def _columns(units: Tensor, width: int) -> Tensor:
    """Indices of the columns of some units, `width` each."""
    return (units[:, None] * width + torch.arange(width, device=units.device)).flatten()
