"""One score a unit, from the dense model alone. Those that read text take an eighth of it.

Losses and sums over a unit's parts are divided by costs: so a channel and a KV group compare.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.baselines import moments, taylor
from benchmarks.baselines.coupled import Coupled, unit_sums
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.obs import obs_scores
from grasp_deploy.pruning.progressive import per_cost
from grasp_deploy.pruning.units import UnitTable

Method = Callable[[nn.Module, Budget, CalibrationText], Tensor]
FEWEST_SEQUENCES = 16


def eighth(text: CalibrationText) -> CalibrationText:
    """An eighth of a run's sequences, at least 16: one of 16 was held out before."""
    count = max(FEWEST_SEQUENCES, -(-2 * len(text.sequences) // 15))
    return replace(text, sequences=text.sequences[:count])


def random(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """A permutation of 0, 1/N, ... that the seed of the run decides: the order of ties."""
    return budget.tie_order.double() / budget.units.size


def magnitude(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """Squared L2 norms of all weights that go with a unit, per cost.

    It is the baseline "L2" of LLM-Pruner (Ma et al. 2023, table 1), whose source adds up squares
    without a root. Squares are a sum over parameters, so per parameter of cost it is their mean.
    """
    return per_cost(magnitude_scores(model, budget.units).float(), budget.costs)


@torch.no_grad()
def magnitude_scores(model: nn.Module, units: UnitTable) -> Tensor:
    """`(N,)` float64 squared L2 norms of all weights that go with a unit."""

    def squares(coupled: Coupled) -> Tensor:
        parts = [coupled.vector_sums(p, p.float().square()) for p in coupled.parameters]
        return torch.stack(parts).sum(0)

    return unit_sums(model, units, squares)


def taylor_vector(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """LLM-Pruner's vector-wise importance (Ma et al. 2023, equation 3), per cost."""
    scores = taylor.taylor_vector_scores(model, budget.units, eighth(text))
    return per_cost(scores.float(), budget.costs)


def taylor_element(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """LLM-Pruner's element-wise importance (Ma et al. 2023, equation 4), per cost."""
    scores = taylor.taylor_element_scores(model, budget.units, eighth(text))
    return per_cost(scores.float(), budget.costs)


def taylor_gate(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """First-order loss of closing a unit's gate (after Molchanov et al. 2019), per cost."""
    scores = taylor.taylor_gate_scores(model, budget.units, eighth(text))
    return per_cost(scores.float(), budget.costs)


def obs(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """The optimal brain surgeon's loss (after van der Ouderaa et al. 2024), once, per cost."""
    scores = obs_scores(model, budget.units, eighth(text), removable=budget.costs > 0)
    return per_cost(scores.float(), budget.costs)


def flap(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """FLAP's standardised fluctuation (An et al. 2024), without its bias; it has no zero."""
    return moments.flap_scores(model, budget.units, eighth(text)).float()


def wanda_structured(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """Wanda-sp (An et al. 2024, after Sun et al. 2024), relative to each layer and kind."""
    return moments.wanda_structured_scores(model, budget.units, eighth(text)).float()
