"""One name, one `(N,)` score: the entry to all one-shot criteria."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.moments import flap_scores, wanda_structured_scores
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.criteria.taylor import (
    taylor_element_scores,
    taylor_gate_scores,
    taylor_vector_scores,
)
from grasp_deploy.pruning.layout import Coupled, device_of, unit_sums
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.units import UnitTable

_READING_TEXT: dict[str, Callable[[nn.Module, UnitTable, CalibrationText], Tensor]] = {
    "taylor-vector": taylor_vector_scores,
    "taylor-element": taylor_element_scores,
    "taylor-gate": taylor_gate_scores,
    "flap": flap_scores,
    "wanda-structured": wanda_structured_scores,
}
CRITERIA: tuple[str, ...] = ("random", "magnitude", *_READING_TEXT, "obs")
# A unit's score is a loss, or a sum over its parts: score per cost compares units.
ADDITIVE: tuple[str, ...] = ("magnitude", "taylor-vector", "taylor-element", "taylor-gate", "obs")


def criterion_scores(
    name: str,
    model: nn.Module,
    units: UnitTable,
    text: CalibrationText,
    *,
    seed: int,
    removable: Tensor | None = None,
) -> Tensor:
    """`(N,)` float32 scores of a frozen causal language model, higher for units to keep.

    `name` is one of CRITERIA; `random` and `magnitude` do not read the text. Only `obs` uses the
    `(N,)` mask `removable`, whose other units always stay; None: all may go. Scores lie on the
    model's device. The model is left as it was. Raises LossError if the loss or scores are not
    finite.
    """
    match name:
        case "random":
            scores = random_scores(units, seed)
        case "magnitude":
            scores = magnitude_scores(model, units)
        case "obs":
            scores = obs_scores(model, units, text, removable)
        case _:
            scores = _READING_TEXT[name](model, units, text)
    scores = scores.to(device_of(model)).float()
    if not bool(scores.isfinite().all()):
        raise LossError(f"the {name} scores are not finite: {OVERFLOW}")
    return scores


def random_scores(units: UnitTable, seed: int) -> Tensor:
    """`(N,)` float64, a permutation of 0, 1/N, ... drawn on the CPU: the same for every device."""
    order = torch.randperm(units.size, generator=torch.Generator().manual_seed(seed))
    return order.double() / units.size


@torch.no_grad()
def magnitude_scores(model: nn.Module, units: UnitTable) -> Tensor:
    """`(N,)` float64 squared L2 norms of all weights that go with a unit.

    It is the baseline "L2" of LLM-Pruner (Ma et al. 2023, table 1), whose source adds up squares
    without a root. Squares are a sum over parameters, so per parameter of cost it is their mean.
    """

    def squares(coupled: Coupled) -> Tensor:
        parts = [coupled.vector_sums(p, p.float().square()) for p in coupled.parameters]
        return torch.stack(parts).sum(0)

    return unit_sums(model, units, squares)
