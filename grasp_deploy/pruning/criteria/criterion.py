"""One name, one `(N,)` score: the entry to all one-shot criteria."""

from __future__ import annotations

from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import OnBatch
from grasp_deploy.pruning.criteria.coupled import gated_linears
from grasp_deploy.pruning.criteria.flap import flap_scores
from grasp_deploy.pruning.criteria.magnitude import magnitude_scores
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.criteria.random_order import random_scores
from grasp_deploy.pruning.criteria.taylor import taylor_element_scores, taylor_vector_scores
from grasp_deploy.pruning.criteria.taylor_gate import taylor_gate_scores
from grasp_deploy.pruning.criteria.wanda import wanda_structured_scores
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.units import UnitTable

CRITERIA: tuple[str, ...] = (
    "random",
    "magnitude",
    "taylor-vector",
    "taylor-element",
    "taylor-gate",
    "flap",
    "wanda-structured",
    "obs",
)
# A unit's score is a loss, or a sum over what it is made of: score per cost compares units.
ADDITIVE: tuple[str, ...] = ("magnitude", "taylor-vector", "taylor-element", "taylor-gate", "obs")


def criterion_scores(
    name: str,
    model: nn.Module,
    units: UnitTable,
    group_width: int,
    blocks: Tensor,
    *,
    batch_size: int,
    seed: int,
    on_batch: OnBatch | None = None,
    removable: Tensor | None = None,
) -> Tensor:
    """`(N,)` float32 scores of a frozen causal language model, higher for what is rather kept.

    `name` is one of CRITERIA; `blocks` are `(n, T)` calibration ids, which `random` and `magnitude`
    do not read; `on_batch(done, total)` hears of blocks read. `obs` alone asks which units are in
    the `(N,)` mask `removable`; None: all are. Scores lie on the model's device.
    The model is left as it was. Raises LossError if the loss is no number or scores are not finite,
    and ValueError for another name.
    """
    _check_fit(model, units, group_width)
    scores = _scores(name, model, units, blocks, batch_size, seed, on_batch, removable)
    if not bool(scores.isfinite().all()):
        raise LossError(f"the {name} scores are not finite: {OVERFLOW}")
    return scores.to(next(model.parameters()).device).float()


def _scores(
    name: str,
    model: nn.Module,
    units: UnitTable,
    blocks: Tensor,
    batch_size: int,
    seed: int,
    on_batch: OnBatch | None,
    removable: Tensor | None,
) -> Tensor:
    match name:
        case "random":
            return random_scores(units, seed)
        case "magnitude":
            return magnitude_scores(model, units)
        case "taylor-vector":
            return taylor_vector_scores(model, units, blocks, batch_size, on_batch)
        case "taylor-element":
            return taylor_element_scores(model, units, blocks, batch_size, on_batch)
        case "taylor-gate":
            return taylor_gate_scores(model, units, blocks, batch_size, on_batch)
        case "flap":
            return flap_scores(model, units, blocks, batch_size, on_batch)
        case "wanda-structured":
            return wanda_structured_scores(model, units, blocks, batch_size, on_batch)
        case "obs":
            return obs_scores(model, units, blocks, batch_size, on_batch, removable)
    raise ValueError(f"unknown criterion {name!r}: choose one of {', '.join(CRITERIA)}")


def _check_fit(model: nn.Module, units: UnitTable, group_width: int) -> None:
    widths = [linear.in_features for linear in gated_linears(model)]
    expected = [
        size * (group_width if segment % 2 else 1)
        for segment, size in enumerate(units.segment_sizes)
    ]
    assert widths == expected, f"the units are not this model's: {expected} against {widths}"
