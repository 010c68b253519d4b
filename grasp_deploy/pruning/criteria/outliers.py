"""Share of outliers in each layer, by which OWL shares its budget out (Yin et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.moments import input_moments
from grasp_deploy.pruning.layout import PRUNABLE_LINEARS, coupled_linears

OUTLIER_FACTOR = 5.0  # M: an outlier is that many times the layer's mean


@torch.no_grad()
def outlier_ratios(
    model: nn.Module, sequences: Tensor, batch_size: int, *, factor: float = OUTLIER_FACTOR
) -> Tensor:
    """`(L,)` float64 shares of a layer's `|W|·‖x‖₂` that exceed `factor` times their mean.

    All prunable weights of the layer count together, which the paper calls the layerwise outlier
    distribution; norms are those over `(n, T)` calibration sequences.
    """
    linears = [coupled.linear for coupled in coupled_linears(model)]
    moments = input_moments(model, linears, CalibrationText(sequences, batch_size))
    pairs = [
        (linear.weight, moment.norm.float())
        for linear, moment in zip(linears, moments, strict=True)
    ]
    size = len(PRUNABLE_LINEARS)
    layers = (pairs[start : start + size] for start in range(0, len(pairs), size))
    return torch.stack([_outlier_ratio(layer, factor) for layer in layers])


def _outlier_ratio(layer: list[tuple[Tensor, Tensor]], factor: float) -> Tensor:
    """The share of one layer, from its `(out, in)` weights and their inputs' `(in,)` norms."""
    count = sum(weight.numel() for weight, _ in layer)
    total = sum((_sizes(*pair).sum(dtype=torch.float64) for pair in layer), start=torch.zeros(()))
    limit = factor * total / count
    outliers = sum(((_sizes(*pair) > limit).sum() for pair in layer), start=torch.zeros(()))
    return outliers.double() / count


def _sizes(weight: Tensor, norms: Tensor) -> Tensor:
    """`(out, in)` `|W|·‖x‖₂`; computed twice rather than held for a whole layer."""
    return weight.float().abs() * norms
