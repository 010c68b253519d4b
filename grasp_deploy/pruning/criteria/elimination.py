"""Removing a layer's units one by one, the cheapest next, each given those already removed.

`P` is the inverse of the inputs' second moments. A unit's block of it is the inverse of the part of
the unit that all others leave unexplained. Removing the unit is a step of block Cholesky with that
block as the pivot:

    S_j = (P_jj)⁻¹,     P ← P - P_:j (P_jj)⁻¹ P_j:

The cheapest unit is the next pivot. Pivots are gathered in panels, as in LAPACK: within a panel
only the columns and diagonal blocks in use are brought up to date, the rest behind it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grasp_deploy.pruning.layout import features_of
from grasp_deploy.pruning.least_squares import finite_power

NOISE_SHARE = 0.01  # of each input's power, which no other input explains
PANEL_COLUMNS = 64


def losses_one_by_one(
    gram: Tensor, moments: Tensor, removable: Tensor | None = None, noise_share: float = NOISE_SHARE
) -> Tensor:
    """`(n,)` float64 losses `½ tr(S C)` of units, each given that all cheaper ones are removed.

    `gram` holds the `(n·w, n·w)` float64 mean products of the inputs, `moments` the `(n, w, w)`
    second moments `C` of their gradients. A unit is never cheaper than one removed before it. Units
    outside the `(n,)` mask `removable` are never removed and get the largest loss. `noise_share` of
    each input's power counts as noise that nothing explains. It is a share of the input's own
    power: real models have inputs a thousand times as large as the others. Raises LossError if the
    Gram matrix is not finite.
    """
    width = moments.shape[-1]
    power = finite_power(gram)
    losses = gram.new_zeros(len(moments))
    left = power.view(-1, width).any(1).nonzero().flatten()  # units removed before cost nothing
    if not len(left):
        return losses
    stays = torch.zeros_like(left, dtype=torch.bool)
    if removable is not None:
        stays = ~removable.to(left.device)[left]
    to_remove = int((~stays).sum())
    inverse = _inverse(gram, features_of(left, width), noise_share)
    largest = losses.new_zeros(())
    while to_remove:
        pivots = min(to_remove, max(1, PANEL_COLUMNS // width))
        removed, costs, factor = _panel(inverse, moments[left], stays, pivots)
        costs = torch.maximum(costs.cummax(0).values, largest)
        losses[left[removed]], largest = costs, costs[-1]
        is_left = torch.ones_like(stays).index_fill(0, removed, False)
        rows = features_of(is_left.nonzero().flatten(), width)
        inverse = torch.addmm(inverse[rows][:, rows], factor[rows], factor[rows].T, alpha=-1)
        left, stays, to_remove = left[is_left], stays[is_left], to_remove - pivots
    return losses.index_fill(0, left, float(largest))


def _panel(
    inverse: Tensor, moments: Tensor, stays: Tensor, pivots: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The next units to remove, `(p,)`, their losses, `(p,)`, and the `(n·w, p·w)` factor `F`.

    Behind them the inverse is `inverse - F Fᵀ`. None of the `(n,)` `stays` units is removed. No
    step waits for the device: there is one for every unit of every layer.
    """
    units, width = len(moments), moments.shape[-1]
    blocks = inverse.view(units, width, units, width).diagonal(dim1=0, dim2=2)
    blocks = blocks.permute(2, 0, 1).clone()  # (n, w, w), kept up to date
    identity = torch.eye(width, dtype=blocks.dtype, device=blocks.device)[None]
    factor = inverse.new_zeros(len(inverse), pivots * width)
    removed, costs = [], []
    for pivot in range(pivots):
        losses = (_inverses(blocks) * moments).sum((1, 2)) / 2
        cost, unit = losses.masked_fill(stays, torch.inf).min(0, keepdim=True)
        removed.append(unit)
        costs.append(cost)
        columns = features_of(unit, width)
        previous = factor[:, : pivot * width]
        column = inverse[:, columns] - previous @ previous[columns].T
        part = _over_root(column, blocks[unit][0])
        factor[:, pivot * width : (pivot + 1) * width] = part
        of_unit = part.view(units, width, width)
        blocks -= of_unit @ of_unit.mT
        blocks.index_copy_(0, unit, identity)
        stays = stays.index_fill(0, unit, True)
    return torch.cat(removed), torch.cat(costs), factor


def _inverse(gram: Tensor, columns: Tensor, noise_share: float) -> Tensor:
    """Inverse of some columns' second moments, a share of each one's power added to it."""
    regular = gram[columns][:, columns]
    power = regular.diagonal()
    regular.diagonal().add_(noise_share * power + 1e-12 * power.mean())  # a column may be always 0
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
