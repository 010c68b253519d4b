"""The optimal brain surgeon's loss: the cost of removing a unit once the others make up for it.

Removing a unit's columns of `down_proj` or `o_proj` loses that part of its inputs which the other
columns cannot predict. To second order, with inputs and gradients assumed independent, it costs

    ½ tr(S C)    S   second moments of a unit's inputs, given those of all units that are left
                 C   second moments of the loss's gradient at these inputs

in nats per token. C stays that of the present weights, which rounds renew. Hassibi and Stork (1993)
for single weights; the Fisher information in two factors, for whole structures of a language model,
as in LLM Surgeon (van der Ouderaa et al. 2024). A KV group is a block of `G·D` columns, an FFN
channel one of a single column.

Units of a layer are removed one by one, the cheapest next, each given those already removed. So of
two units which predict each other the second is expensive. `P` is the inverse of the inputs' second
moments. A unit's block of it is the inverse of the part of the unit that all others leave
unexplained. Removing the unit is a step of block Cholesky with that block as the pivot:

    S_j = (P_jj)⁻¹,     P ← P - P_:j (P_jj)⁻¹ P_j:

Experts have no columns that others could make up for: `experts.removal_losses` states theirs.

Pivots are gathered in panels, as in LAPACK. Within a panel only the columns and diagonal blocks in
use are brought up to date, and the rest after it.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.experts import removal_losses
from grasp_deploy.pruning.layerwise import embedded, half_layers
from grasp_deploy.pruning.layout import (
    device_of,
    features_of,
    half_of,
    installed,
    on_inputs,
    output_projections,
    routers,
)
from grasp_deploy.pruning.least_squares import Gram, finite_power
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.units import UnitTable

NOISE_SHARE = 0.01  # of each input's power, which no other input explains
PANEL_COLUMNS = 64
LEFT_BEFORE_CUT = 0.8  # share of units left when the matrix is cut: each cut copies it


def obs_scores(
    model: nn.Module, units: UnitTable, text: CalibrationText, removable: Tensor | None = None
) -> Tensor:
    """`(N,)` float64 losses in nats per token.

    Units outside the `(N,)` mask `removable` always stay: a unit that one of them predicts is
    cheap, and not the other way round. In a segment without removable units scores are 0.
    The text's `on_batch` is called after each batch, and then for each segment to be scored.

    Raises LossError if the loss, hidden states or scores are not finite.
    """
    if removable is None:
        removable = torch.ones(units.size, dtype=torch.bool)
    removable_of = removable.split(units.segment_sizes)
    linears = output_projections(model)
    scored = {segment for segment in linears if bool(removable_of[segment].any())}
    total = len(text.sequences) + len(scored)
    counted = replace(text, on_batch=lambda done, _sequences: text.on_batch(done, total))

    gradients = _gradient_moments(model, units, counted)
    scores = [  # those of experts are losses already
        moments.new_zeros(len(moments)) if segment in linears else moments
        for segment, moments in enumerate(gradients)
    ]
    for segment, gram in text.team.take_turns(_grams(model, counted, scored)):
        scores[segment] = losses_one_by_one(gram, gradients[segment], removable_of[segment])
    flat = torch.cat(scores)
    text.team.add_up(flat)  # each segment's are zero but in one process
    if not bool(flat.isfinite().all()):
        raise LossError(f"the scores of the units are not finite: {OVERFLOW}")
    return flat


def _gradient_moments(model: nn.Module, units: UnitTable, text: CalibrationText) -> list[Tensor]:
    """`(units, w, w)` mean products over tokens of the gradients at the units' columns, by segment.

    The gradients are those of the summed loss of a token's sequence, in nats. For experts these are
    `(units,)` mean losses instead.
    """
    linears, choosing = output_projections(model), routers(model)
    moments = []
    for segment, size in enumerate(units.segment_sizes):
        width = linears[segment].in_features // size if segment in linears else 0
        shape = (size, width, width) if width else (size,)
        moments.append(torch.zeros(shape, device=device_of(model), dtype=torch.float64))

    def add(segment: int, gradient: Tensor) -> None:
        moments[segment] += _products(gradient, moments[segment].shape[-1])

    def track(segment: int, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        x.register_hook(lambda gradient: add(segment, gradient))
        return x

    def await_gradient(segment: int, experts: nn.Module, hidden: Tensor, output: Tensor) -> None:
        def add_losses(gradient: Tensor) -> None:
            moments[segment] += removal_losses(choosing[segment], experts, hidden, gradient)

        if output.requires_grad:  # else it is `removal_losses` that calls the experts
            output.register_hook(add_losses)

    awaited = (
        half_of(model, s).experts.register_forward_hook(  # type: ignore[union-attr]
            lambda module, inputs, output, s=s: await_gradient(s, module, inputs[0], output)
        )
        for s in choosing
    )
    with on_inputs(linears, track), installed(awaited):
        for batch, loss in text.losses(model, "obs"):
            (loss * batch[:, 1:].numel()).backward()
    text.team.add_up(*moments)
    return [moment / text.sequences.numel() for moment in moments]


def _products(gradients: Tensor, width: int) -> Tensor:
    """`(units, w, w)` sums over tokens of the products of each unit's columns."""
    rows = gradients.flatten(end_dim=-2).float()
    if width == 1:
        return rows.square().sum(0)[:, None, None]
    by_unit = rows.unflatten(1, (-1, width)).transpose(0, 1)
    return by_unit.transpose(1, 2) @ by_unit


@torch.no_grad()
def _grams(
    model: nn.Module, text: CalibrationText, scored: Container[int]
) -> Iterator[tuple[int, Tensor]]:
    """Float64 mean products over tokens of the inputs of o_proj and down_proj, by scored segment.

    Sums over this process's part of the tokens, divided by the number of all. One is made at a
    time: those of a whole model would be larger than the model.
    """
    device, done = device_of(model), len(text.sequences)
    batches = list(text.team.deal(text.sequences)[0].to(device).split(text.batch_size))
    hidden = embedded(model, batches, text.team)
    linears = output_projections(model)
    for segment, halves in half_layers(model, batches, text.team):
        gram = Gram(linears[segment].in_features, device) if segment in scored else None
        for place, half in enumerate(halves):
            passed = half(hidden[place])
            hidden[place] = hidden[place] + passed.added
            if gram:
                gram.add(passed.inputs)
        if gram:
            done += 1
            text.on_batch(done, len(text.sequences))
            yield segment, gram.sums.div_(text.sequences.numel())


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
    largest, is_left = losses.new_zeros(()), torch.ones_like(stays)
    while to_remove:
        pivots = min(to_remove, max(1, PANEL_COLUMNS // width))
        removed, costs, factor = _panel(inverse, moments[left], stays, pivots)
        costs = torch.maximum(costs.cummax(0).values, largest)
        losses[left[removed]], largest = costs, costs[-1]
        inverse.addmm_(factor, factor.T, alpha=-1)
        is_left, stays = is_left.index_fill(0, removed, False), stays.index_fill(0, removed, True)
        to_remove -= pivots
        if int(is_left.sum()) < LEFT_BEFORE_CUT * len(left):
            rows = features_of(is_left.nonzero().flatten(), width)
            inverse = inverse[rows][:, rows]
            left, stays, is_left = left[is_left], stays[is_left], is_left[is_left]
    return losses.index_fill(0, left[is_left], float(largest))


def _panel(
    inverse: Tensor, moments: Tensor, stays: Tensor, pivots: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The next units to remove, `(p,)`, their losses, `(p,)`, and the `(n·w, p·w)` factor `F`.

    After their removal the inverse is `inverse - F Fᵀ`. None of the `(n,)` `stays` units is
    removed. No step waits for the device, since there is one for every unit of every layer.
    """
    units, width = len(moments), moments.shape[-1]
    blocks = inverse.view(units, width, units, width).diagonal(dim1=0, dim2=2)
    identity = torch.eye(width, dtype=blocks.dtype, device=blocks.device)[None]
    blocks = blocks.permute(2, 0, 1)  # (n, w, w), kept up to date; nothing is left of removed ones
    blocks = torch.where(stays[:, None, None], identity, blocks)
    factor = inverse.new_zeros(len(inverse), pivots * width)
    removed, costs = [], []
    for pivot in range(pivots):
        losses = (_inverses(blocks) * moments).sum((1, 2)) / 2
        cost, unit = losses.masked_fill(stays, torch.inf).min(0, keepdim=True)
        removed.append(unit)
        costs.append(cost)
        columns = features_of(unit, width)
        previous = factor[:, : pivot * width]
        column = inverse[columns].T - previous @ previous[columns].T  # rows lie together
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
    # Not by LU: MKL's may fail on three blocks of 192 with two threads.
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(blocks).L)


def _over_root(column: Tensor, block: Tensor) -> Tensor:
    """`column (Lᵀ)⁻¹`, where `L Lᵀ` is the block."""
    if len(block) == 1:
        return column / block.sqrt()
    root = torch.linalg.cholesky_ex(block).L
    return torch.linalg.solve_triangular(root.mT, column, upper=True, left=False)
