"""How many outliers a layer holds: what OWL shares its budget out by (Yin et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.coupled import coupled_linears
from grasp_deploy.pruning.criteria.moments import input_moments

OUTLIER_FACTOR = 5.0  # M: an outlier is that many times the layer's mean


@torch.no_grad()
def outlier_ratios(
    model: nn.Module,
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None = None,
    *,
    factor: float = OUTLIER_FACTOR,
) -> Tensor:
    """`(L,)` float64 shares of a layer's `|W|·‖x‖₂` that exceed `factor` times their mean.

    All prunable weights of the layer count together, which the paper calls the layerwise outlier
    distribution; norms are taken over `(n, T)` calibration blocks.
    """
    coupled = list(coupled_linears(model))
    linears = [one.linear for one in coupled]
    moments = input_moments(model, linears, blocks, batch_size, on_batch)
    layers: list[list[tuple[Tensor, Tensor]]] = []
    for one, moment in zip(coupled, moments, strict=True):
        if one.segment // 2 == len(layers):
            layers.append([])
        layers[-1].append((one.linear.weight, moment.norm.float()))
    return torch.stack([_outlier_ratio(layer, factor) for layer in layers])


def _outlier_ratio(layer: list[tuple[Tensor, Tensor]], factor: float) -> Tensor:
    """The share of one layer, from its `(out, in)` weights and their inputs' `(in,)` norms."""
    count = sum(weight.numel() for weight, _ in layer)
    total = sum((_sizes(*pair).sum(dtype=torch.float64) for pair in layer), start=torch.zeros(()))
    limit = factor * total / count
    outliers = sum(((_sizes(*pair) > limit).sum() for pair in layer), start=torch.zeros(()))
    return outliers.double() / count


def _sizes(weight: Tensor, norms: Tensor) -> Tensor:
    """`(out, in)` `|W|·‖x‖₂`; made twice rather than held for a whole layer."""
    return weight.float().abs() * norms
