"""One name, one `(N,)` score: the entry to all one-shot criteria."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.from_moments import flap_scores, wanda_structured_scores
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.criteria.taylor import (
    taylor_element_scores,
    taylor_gate_scores,
    taylor_vector_scores,
)
from grasp_deploy.pruning.criteria.without_text import magnitude_scores, random_scores
from grasp_deploy.pruning.layout import device_of
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

    `name` is one of CRITERIA; `random` and `magnitude` do not read the text. `obs` alone removes no
    unit outside the `(N,)` mask `removable`; None: all may go. Scores lie on the model's device.
    The model is left as it was. Raises LossError if the loss or scores are not finite.
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
    if not bool(scores.isfinite().all()):
        raise LossError(f"the {name} scores are not finite: {OVERFLOW}")
    return scores.to(device_of(model)).float()
