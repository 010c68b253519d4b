"""The learnt stages: scores under the budget (section 3.3), then scales on a fixed mask (3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from grasp_deploy.checkpoint.plan import unit_scales
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.pruning import training
from grasp_deploy.pruning.learning_state import LearningState


def learn_gates(frozen: FrozenModel, start: Tensor) -> Tensor:
    """`(N,)` scores learnt from `start`; `start` itself for a method that does not learn."""
    if not frozen.run.config.learns:
        return start
    return frozen.learn("gates", start, frozen.run.gate_schedule, partial(gate_steps, frozen))


def gate_steps(frozen: FrozenModel, state: LearningState) -> Iterator[training.StepRecord]:
    """Steps of learning the `(N,)` scores of a state, each projected onto the budget."""
    run, config = frozen.run, frozen.run.config
    return training.learn_scores(
        frozen.model,
        run.budget,
        run.group_width,
        run.gate_blocks,
        run.gate_schedule,
        state,
        temperature=config.temperature,
        per_cost=run.ranks_per_cost,
        noisy=config.method == "gumbel-topk",
        site=config.gate_site,
    )


def learn_scales(frozen: FrozenModel, mask: Tensor) -> Tensor:
    """`(N,)` scales of a `(N,)` mask, 1 at the start and wherever a unit is removed."""
    run, schedule = frozen.run, frozen.run.scale_schedule
    return frozen.learn(
        "scales",
        unit_scales(mask).to(run.device),
        schedule,
        lambda state: training.learn_scales(
            frozen.model, run.budget.units, run.group_width, mask, run.blocks, schedule, state
        ),
    )
